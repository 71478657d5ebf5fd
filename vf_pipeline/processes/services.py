"""Processes that outlive their starter: kept by name in a record, started once, ended by another.

    absent ──start──► noted in the record ──ready()──► stays, also when its starter ends
       ▲                   │ dies, or is late             │
       │                   ▼                              │
       │              ProcessError, still noted           │
       └── end ────────────┴──────────────────────────────┘

``end`` finds it by pid, start time and tag: SIGTERM, grace_s, SIGKILL for all below it.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from vf_pipeline.processes.readiness import ProcessLog, wait_until_ready
from vf_pipeline.processes.record import TAG_VAR, Noted, new_tag, read_record, write_record
from vf_pipeline.processes.tree import end_tree, find_tree, same_start, started_at


class Services:
    """The services noted in one record.

    Args:
        record: JSON file in which they are noted.
        log_dir: folder of their logs.
        cwd: folder they run in.
        grace_s: how long one may take to end after SIGTERM, in seconds.
    """

    def __init__(self, record: Path, log_dir: Path, cwd: Path, grace_s: float = 20.0) -> None:
        self._record = record
        self._log_dir = log_dir
        self._cwd = cwd
        self._grace_s = grace_s

    def names(self) -> list[str]:
        """Return the names of all that were started and not ended."""
        return [noted.name for noted in read_record(self._record)]

    def running(self, name: str) -> bool:
        """Return whether the noted process still is that one: pids are used again."""
        noted = self._find(name)
        if noted is None or not same_start(noted.pid, noted.started_at):
            return False
        # Started by this process, a dead one stays a zombie until somebody waits for it.
        return bool(psutil.Process(noted.pid).status() != psutil.STATUS_ZOMBIE)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: Callable[[], bool],
        timeout_s: float,
        awaited: str = "ready",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a service and wait until it is ready; it stays when this process ends.

        Raises:
            ProcessError: it died, or was not ready in time; it is noted all the same.
        """
        log = ProcessLog(self._log_dir / f"{name}.log")
        tag = new_tag()
        with log.open() as file:
            process = subprocess.Popen(
                list(command),
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=self._cwd,
                env={**os.environ, **(env or {}), TAG_VAR: tag},
                # Ctrl-C in the terminal that started it is not for a service that stays.
                start_new_session=True,
            )
        noted = Noted(name, process.pid, started_at(process.pid), tag)
        # Before the wait: a starter that is killed while it waits leaves what end() can find.
        write_record(self._record, [*self._others(name), noted])
        wait_until_ready(
            name,
            ready,
            alive=lambda: process.poll() is None,
            death=lambda: log.death(name, f"died before it was {awaited}", process.poll()),
            timeout_s=timeout_s,
            log=log,
            awaited=awaited,
        )

    def end(self, name: str) -> bool:
        """End a service with all below it, and forget it; return whether any of it still ran."""
        noted = self._find(name)
        if noted is None:
            return False
        tree = find_tree(noted.pid, TAG_VAR, noted.tag, noted.started_at)
        if tree:
            end_tree(tree, self._grace_s)
        write_record(self._record, self._others(name))
        return bool(tree)

    def _find(self, name: str) -> Noted | None:
        return next((noted for noted in read_record(self._record) if noted.name == name), None)

    def _others(self, name: str) -> list[Noted]:
        return [noted for noted in read_record(self._record) if noted.name != name]
