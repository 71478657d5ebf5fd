"""A process from its start until it is ready: its log, its death, and a wait with a bound."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from vf_pipeline import storage
from vf_pipeline.errors import ProcessError

_TAIL_LINES = 20
# A log may have grown to gigabytes: only its end is read.
_TAIL_BYTES = 8192


class ProcessLog:
    """The file that a process's output is appended to; earlier output is not this process's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0

    def open(self) -> IO[bytes]:
        """Open the file for a process that is about to start; folders on the way are made.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("ab")
        except OSError as error:
            raise storage.explain_os_error(error, "write", self.path) from error
        # Logs are appended to; an error must not show the last words of an earlier process.
        self._start = file.tell()
        return file

    def tail(self) -> str:
        """Return the last lines that the process wrote."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - _TAIL_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def death(self, name: str, what: str, code: int | None) -> ProcessError:
        """Return a process's end as an error, with its last lines; a negative code is a signal."""
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        tail = self.tail()
        ending = f"; its log ends with:\n{tail}" if tail else " and logged nothing"
        return ProcessError(f"{name} {what} ({how}){ending}", f"see {self.path}")


def wait_until_ready(
    name: str,
    ready: Callable[[], bool],
    *,
    alive: Callable[[], bool],
    death: Callable[[], ProcessError],
    timeout_s: float,
    log: ProcessLog,
    awaited: str = "ready",
) -> None:
    """Wait until a process is ready, with a bound.

    Args:
        name: what it is called in messages.
        ready: whether it is.
        alive: whether it still runs.
        death: the error that its end is.
        timeout_s: how long it may take, in seconds.
        log: where it writes.
        awaited: what is waited for, in words.

    Raises:
        ProcessError: it died, or was not ready in time.
    """
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while True:
        is_ready = ready()
        # First whether it lives: another program may answer at its address.
        if not alive():
            raise death()
        if is_ready:
            return
        if time.monotonic() > deadline:
            raise ProcessError(
                f"{name} was not {awaited} within {timeout_s:.0f} s; its log ends with:\n"
                f"{log.tail()}",
                f"see {log.path}",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
