"""Clean up after runs that were killed: end the processes that they left behind."""

import fcntl
from pathlib import Path

from prefect import flow

from tasks.run import LOCK, runs_dir
from vf_pipeline.serving.process import reap


@flow(name="reap")
def reap_flow() -> int:
    """End processes that runs recorded and left behind; return how many were ended.

    A run that somebody works on is passed over: its lock is held.
    """
    return sum(_reap_idle(record) for record in sorted(runs_dir().glob("*/processes.json")))


def _reap_idle(record: Path) -> int:
    with (record.parent / LOCK).open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        return reap(record)
