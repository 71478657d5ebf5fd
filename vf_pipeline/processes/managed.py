"""Child processes that end with their parent, whatever ends it.

    start ─► starting ──answers at ready_url──► ready ──stop()──► SIGTERM ──grace_s──► SIGKILL
                │                                 │
                └── dies, or is late              └── dies, seen by check()
                └───────────────┬─────────────────┘
                                ▼
             ProcessError with the last lines of its log

A start that fails ends what it has started.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from vf_pipeline.errors import PrerequisiteError, ProcessError, StorageError
from vf_pipeline.processes.addresses import answers
from vf_pipeline.processes.readiness import ProcessLog, wait_until_ready
from vf_pipeline.processes.record import (
    RECORD_LOCK,
    TAG_VAR,
    Noted,
    new_tag,
    read_record,
    write_record,
)
from vf_pipeline.processes.spawner import SPAWNER
from vf_pipeline.processes.tree import end_tree, find_tree, started_at

logger = logging.getLogger(__name__)

_GRACE_S = 20.0


class ManagedProcess:
    """A child process as a context manager: started, awaited, watched, ended with all below it.

    Args:
        name: what it is called in messages.
        cmd: program and arguments.
        log_path: file that its output is appended to.
        env: variables over those of this process.
        ready_url: URL that answers 200 once the process is ready; None: ready at once.
        ready_timeout_s: how long that may take, in seconds.
        record: JSON file in which the process is noted while it runs, for ``reap``.
        grace_s: how long it may take to end after SIGTERM, in seconds, before SIGKILL.
    """

    def __init__(
        self,
        name: str,
        cmd: Sequence[str],
        *,
        log_path: str | Path,
        env: Mapping[str, str] | None = None,
        ready_url: str | None = None,
        ready_timeout_s: float = 180.0,
        record: str | Path | None = None,
        grace_s: float = _GRACE_S,
    ) -> None:
        self.name = name
        self.cmd = [str(part) for part in cmd]
        self._log = ProcessLog(Path(log_path))
        self._env = dict(env or {})
        self._ready_url = ready_url
        self._ready_timeout_s = ready_timeout_s
        self._record = Path(record) if record is not None else None
        self._grace_s = grace_s
        self._tag = new_tag()
        self._process: subprocess.Popen[bytes] | None = None
        self._started: float | None = None

    def __enter__(self) -> "ManagedProcess":
        """Start the process and wait until it is ready."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process and all below it."""
        self.stop()

    @property
    def log_path(self) -> Path:
        """The file that its output is appended to."""
        return self._log.path

    @property
    def pid(self) -> int:
        """The process id, or 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            PrerequisiteError: there is no such program.
            ProcessError: it died, or was not ready in time; it is ended then.
        """
        if shutil.which(self.cmd[0]) is None:
            raise PrerequisiteError(f"cannot start {self.name}: no program {self.cmd[0]!r}")
        with self._log.open() as log:
            environment = {**os.environ, **self._env, TAG_VAR: self._tag}
            # The file may be closed here: the child has a descriptor of its own.
            self._process = SPAWNER.spawn(self.cmd, log, environment)
        # A pid is used again once its exit code is taken: its start time tells it from others.
        self._started = started_at(self.pid)
        try:
            self._note()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raise if the process has died.

        Raises:
            ProcessError: with the exit code and the last lines of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            raise self._death("died")

    def wait(self, timeout: float) -> int:
        """Wait for the process to end by itself; return its exit code (negative: the signal).

        Raises:
            ProcessError: it still runs after ``timeout`` seconds.
        """
        if self._process is None:
            raise ProcessError(f"{self.name} was not started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessError(
                f"{self.name} (pid {self.pid}) still runs after {timeout:.0f} s",
                f"its log is {self.log_path}",
            ) from None

    def stop(self) -> None:
        """End the process and all below it: SIGTERM, a grace period, SIGKILL. Idempotent."""
        if self._process is None:
            return
        stubborn = end_tree(
            find_tree(self.pid, TAG_VAR, self._tag, self._started), self._grace_s, self._process
        )
        if stubborn:
            logger.warning("%s: %d processes had to be killed", self.name, stubborn)
        # Takes the exit code from the kernel, or a zombie stays for as long as this process.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        self._forget()

    def log_tail(self) -> str:
        """Return the last lines that this process wrote."""
        return self._log.tail()

    def _wait_until_ready(self) -> None:
        url = self._ready_url
        if url is not None:
            wait_until_ready(
                self.name,
                lambda: answers(url),
                alive=lambda: self.running,
                death=lambda: self._death("died before it was ready"),
                timeout_s=self._ready_timeout_s,
                log=self._log,
                awaited=f"ready at {url}",
            )

    def _death(self, what: str) -> ProcessError:
        code = self._process.poll() if self._process is not None else None
        return self._log.death(self.name, what, code)

    def _note(self) -> None:
        if self._record is None:
            return
        noted = Noted(self.name, self.pid, self._started or 0.0, self._tag)
        with RECORD_LOCK:
            write_record(self._record, [*read_record(self._record), noted])

    def _forget(self) -> None:
        if self._record is None:
            return
        # A full disk must not hide why the process was ended; reap() passes over dead ones.
        with RECORD_LOCK, suppress(StorageError):
            kept = [noted for noted in read_record(self._record) if noted.tag != self._tag]
            write_record(self._record, kept)
