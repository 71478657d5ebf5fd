"""One process a run: the lock in its folder. The system frees it when its holder dies."""

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.errors import StorageError

log = logging.getLogger(__name__)

LOCK = "lock"
"""Held by who works on a run: a command, or a flow."""
STAGE_LOCK = "stage.lock"
"""Held by a stage on a work pool, whose chain holds the other."""
_POLL_S = 1.0


@contextmanager
def hold_lock(folder: Path, name: str = LOCK, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a run's lock for the block; its folder is made.

    Args:
        folder: the run directory.
        name: name of the lock's file.
        wait_s: how long to wait for another holder, in seconds.

    Raises:
        StorageError: another process holds it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Nobody removes the file of a run's own lock: another process could make a new one of its
        # name and lock that. Children do not inherit descriptors: a server left behind holds none.
        file = (folder / name).open("w", encoding="utf-8")
    except OSError as error:
        raise storage.explain_os_error(error, "write", folder) from error
    with file:
        deadline = time.monotonic() + wait_s
        told = False
        while not _taken(file.fileno()):
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"another process works on {folder}",
                    "wait for it, or end it first (a stage in a work pool: cancel it in Prefect)",
                )
            if not told:
                log.info("another process works on %s: waiting up to %.0f s", folder, wait_s)
                told = True
            time.sleep(_POLL_S)
        yield


def is_held(folder: Path, name: str = LOCK) -> bool:
    """Return whether a process works on a run at this moment."""
    try:
        with (folder / name).open("r", encoding="utf-8") as file:
            # Takes it for a moment if it is free; leaving the block frees it.
            return not _taken(file.fileno())
    except OSError:
        return False


def _taken(descriptor: int) -> bool:
    """Take the lock if it is free; return whether it is ours. Closing the file frees it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
