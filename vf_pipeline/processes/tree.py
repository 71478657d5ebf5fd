"""A process with all below it: found by parentage and by tag, and ended."""

import os
import subprocess
import time
from contextlib import suppress

import psutil

_POLL_S = 0.02
_KILL_WAIT_S = 5.0
# A start time is ticks since the boot, plus the time of the boot; that moves when the clock is set.
_SAME_START_S = 2.0


def started_at(pid: int) -> float:
    """Return when a process was started (seconds since the epoch), or 0 if it is gone."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def same_start(pid: int, started: float) -> bool:
    """Return whether the process of this id is the one that was started then (epoch, s)."""
    now = started_at(pid)
    return bool(now) and abs(now - started) < _SAME_START_S


def find_tree(
    pid: int, variable: str, tag: str, started: float | None = None
) -> list[psutil.Process]:
    """Return the living processes of a tree, the root first.

    Besides the children of children, those that carry the tag in their environment are found:
    they stay behind when a process between them and the root has ended.

    Args:
        pid: the root.
        variable: environment variable that holds the tag.
        tag: its value.
        started: start time of the root; a later process with the same id is passed over.
    """
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        if started is None or abs(root.create_time() - started) < _SAME_START_S:
            found[pid] = root
            found.update((child.pid, child) for child in root.children(recursive=True))
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, SystemError):
            if process.pid not in found and process.environ().get(variable) == tag:
                found[process.pid] = process
    # We may carry that tag ourselves, where this runs below the process that is to end.
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _alive(process)]


def end_tree(
    tree: list[psutil.Process], grace_s: float, root: "subprocess.Popen[bytes] | None" = None
) -> int:
    """End processes: SIGTERM, up to ``grace_s`` seconds, SIGKILL; return how many were killed.

    ``root`` is polled meanwhile when it is our own child, so that it leaves no zombie.
    """
    late: dict[int, psutil.Process] = {process.pid: process for process in tree}
    for process in tree:
        with suppress(psutil.Error):
            # Before its signal: children of what has ended belong to another parent.
            late.update((child.pid, child) for child in process.children(recursive=True))
            process.terminate()
    _wait_for(list(late.values()), grace_s, root)
    # Some may have started more meanwhile.
    for process in list(late.values()):
        with suppress(psutil.Error):
            late.update((child.pid, child) for child in process.children(recursive=True))
    stubborn = [process for process in late.values() if _alive(process)]
    for process in stubborn:
        with suppress(psutil.Error):
            process.kill()
    _wait_for(stubborn, _KILL_WAIT_S, root)
    return len(stubborn)


def _wait_for(
    tree: list[psutil.Process], seconds: float, root: "subprocess.Popen[bytes] | None"
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if root is not None:
            root.poll()
        if not any(_alive(process) for process in tree):
            return
        time.sleep(_POLL_S)


def _alive(process: psutil.Process) -> bool:
    try:
        # is_running() compares start times as well: a pid that is used again is not this process.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
