"""Ends in Prefect what was ended on this machine: flow runs whose process was killed.

A flow that is killed with SIGKILL cannot say so, and stays "Running" on the server for ever. Its
run's folder tells: the lock is free, and the process that is noted beside the flow run is gone.
"""

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from vf_pipeline.errors import VfError
from vf_pipeline.processes.tree import same_start, started_at
from vf_pipeline.runs import Manifest, runs_dir
from vf_pipeline.runs.lock import STAGE_LOCK, is_held

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, StateType

log = logging.getLogger(__name__)

_MESSAGE = "Its process was killed; the same settings go on where it stopped."
_PAGE = 200
_NOTE_S = 5.0
"""How long after its note a run's own state may reach the server, in seconds."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A flow run whose process is gone, and the folder of its run."""

    flow_run: UUID
    folder: Path
    noted_at: float


def process_facts() -> dict[str, float]:
    """Return this process as a run notes it beside its flow run: pid, start, now (epoch, s)."""
    pid = os.getpid()
    return {"pid": pid, "started_at": started_at(pid), "noted_at": time.time()}


def reconcile() -> int:
    """Set flow runs of killed processes, and all below them, to Crashed; return how many.

    Asks the server at PREFECT_API_URL, and touches only what it finds there. Never raises: it
    mends the record of earlier runs, and must not cost this one its start.
    """
    try:
        orphans = find_orphans(runs_dir())
        if not orphans:
            return 0
        # Prefect reads its settings when it is imported: not before its server is known.
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            pages = (orphans[at : at + _PAGE] for at in range(0, len(orphans), _PAGE))
            return sum(_crash_those_left(client, page) for page in pages)
    except Exception as error:
        log.warning("killed runs may still show as running in Prefect: %s", error)
        return 0


def find_orphans(runs: Path) -> list[Orphan]:
    """Return the flow runs, noted in run folders, whose process is gone; most have ended well."""
    found = []
    for path in sorted(runs.glob("*/manifest.json")):
        try:
            facts = Manifest.open(path.parent).facts
            flow_run = UUID(str(facts.get("prefect_flow_run")))
            noted = facts.get("process") or {}
            # A process that lives without the run's lock is about to report its end itself.
            if not _lives(noted):
                found.append(Orphan(flow_run, path.parent, float(noted.get("noted_at", 0.0))))
        except (VfError, ValueError, TypeError, KeyError, AttributeError):
            # What cannot be read tells nothing about its own run, and is no reason to leave others.
            continue
    return found


def _lives(noted: dict[str, float]) -> bool:
    """Return whether a noted process runs; later ones with its pid started at another time."""
    if not noted:
        return False
    return same_start(int(noted["pid"]), float(noted["started_at"]))


def _crash_those_left(client: "SyncPrefectClient", orphans: list[Orphan]) -> int:
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )

    folders = {orphan.flow_run: orphan.folder for orphan in orphans}
    noted = {orphan.flow_run: orphan.noted_at for orphan in orphans}
    open_ones = FlowRunFilter(
        id=FlowRunFilterId(any_=list(folders)),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_states())),
    )
    runs = client.read_flow_runs(flow_run_filter=open_ones, limit=_PAGE)
    # Looking at a lock takes it for a moment, so it is done for these few alone.
    left = [
        run for run in runs if not is_held(folders[run.id]) and not _was_retried(run, noted[run.id])
    ]
    for run in left:
        # A stage of the chain may live on, on a worker: it is told to stop.
        stage_lives = is_held(folders[run.id], STAGE_LOCK)
        _crash(client, run, stage_lives)
        log.info("%s was killed before: its flow run ends as Crashed", folders[run.id].name)
    return len(left)


def _was_retried(run: "FlowRun", noted_at: float) -> bool:
    """Return whether a flow run began again after its process was noted: the UI's Retry.

    Its new process takes seconds to note itself and to take the lock, and must not be taken for
    the old one. Without a note there was no process yet: a run that waits to begin is left alone.
    """
    from prefect.client.schemas.objects import StateType

    state = run.state
    if state is None or state.type == StateType.CANCELLING:
        return False
    if not noted_at:
        return state.type == StateType.PENDING
    return bool(state.timestamp.timestamp() > noted_at + _NOTE_S)


def _crash(client: "SyncPrefectClient", run: "FlowRun", stage_lives: bool) -> None:
    """Set a flow run to Crashed after what is below it, so that a kill in between loses nothing."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        FlowRunFilterParentFlowRunId,
        FlowRunFilterState,
        FlowRunFilterStateType,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Cancelling, Crashed

    below = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run.id]),
        # A stage that waits for its pool would start for nobody.
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_states(StateType.SCHEDULED))),
    )
    for child in client.read_flow_runs(flow_run_filter=below, limit=_PAGE):
        if stage_lives and child.state_type == StateType.RUNNING:
            client.set_flow_run_state(child.id, Cancelling(message="Its chain was killed."))
        else:
            _crash(client, child, stage_lives)
    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_states()))
        ),
        limit=_PAGE,
    )
    for task in tasks:
        client.set_task_run_state(task.id, Crashed(message=_MESSAGE), force=True)
    client.set_flow_run_state(run.id, Crashed(message=_MESSAGE), force=True)


def _states(*more: "StateType") -> "list[StateType]":
    from prefect.client.schemas.objects import StateType

    return [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, *more]
