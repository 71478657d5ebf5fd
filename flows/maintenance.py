"""Clean up after runs that were killed: orphaned processes, MLflow runs left open."""

import fcntl
from pathlib import Path

from prefect import flow

from tasks.run import runs_dir
from vf_pipeline.serving.process import reap


@flow(name="reap")
def reap_flow() -> int:
    """End processes that runs recorded and left behind; return how many were ended.

    A run that somebody works on is passed over: its lock is held.
    """
    return sum(reap(record) for record in _idle_records())


def _idle_records() -> list[Path]:
    records = []
    for record in sorted(runs_dir().glob("*/processes.json")):
        with (record.parent / "lock").open("a", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            records.append(record)
    return records
