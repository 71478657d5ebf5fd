"""Clean up after runs that were killed: what they left behind on this machine and in Prefect."""

from pathlib import Path

from prefect import flow

from infra.local.reconcile import reconcile
from vf_pipeline.errors import StorageError
from vf_pipeline.processes import reap
from vf_pipeline.runs import runs_dir
from vf_pipeline.runs.lock import hold_lock


@flow(name="reap")
def reap_flow() -> int:
    """End processes that runs recorded and left behind; return how many were ended.

    A run that somebody works on is passed over: its lock is held. Flow runs of killed processes
    are set to Crashed.
    """
    ended = sum(_reap_idle(record) for record in sorted(runs_dir().glob("*/processes.json")))
    reconcile()
    return ended


def _reap_idle(record: Path) -> int:
    try:
        # Held while reaping: a run that starts in between would see its new processes ended.
        with hold_lock(record.parent):
            return reap(record)
    except StorageError:
        return 0
