"""Send a stage of a chain to its work pool, and wait for it there."""

import logging
import time

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.deployments import run_deployment
from prefect.states import Cancelling

from flows.handover import handover_path, read_error, read_outputs
from vf_pipeline import storage
from vf_pipeline.errors import PrerequisiteError, ProcessError
from vf_pipeline.runs import Manifest, Run
from vf_pipeline.runs.outputs import StageOutputs
from vf_pipeline.runs.stages import STAGES, StageName, typed_outputs

log = logging.getLogger(__name__)

_POLL_S = 1.0
# A bound against waiting for ever for a worker that has vanished; no stage takes this long.
_TIMEOUT_S = 7 * 24 * 3600.0


def run_on_pool(run: Run, name: StageName, key: str) -> StageOutputs:
    """Return what a stage made on its pool; the result comes back as a file beside its key.

    Raises:
        PrerequisiteError: no worker serves the pool.
        VfError: what the stage failed with there.
        ProcessError: it ended without saying why, or its result is that of other inputs.
    """
    pool = STAGES[name].pool
    with get_client(sync_client=True) as client:
        _check_worker(client, f"vf-{pool}")
        # What an earlier try has left there says nothing about this one.
        storage.remove(handover_path(run.folder, name))
        parameters = {"run": run.folder.name, "stage": name}
        started = run_deployment(f"stage/{pool}", parameters=parameters, timeout=0)
        # In a synchronous flow it is the flow run itself, never a coroutine.
        assert isinstance(started, FlowRun)
        log.info("%s: waits for pool vf-%s", name, pool)
        ended = _wait(client, started)
    if ended.state is None or not ended.state.is_completed():
        state = ended.state
        raise read_error(run.folder, name, str(started.id)) or ProcessError(
            f"on pool vf-{pool} it ended {state.name if state else 'without a state'}: "
            f"{(state.message if state else '') or 'its logs in the Prefect UI say why'}",
            "mend the cause, then run the same command again",
        )
    outputs = typed_outputs(name, read_outputs(run.folder, name, key))
    # The stage wrote its MLflow run's id down; this process waited and wrote nothing meanwhile.
    run.manifest.facts = Manifest.open(run.folder).facts
    return outputs


def _check_worker(client: SyncPrefectClient, pool: str) -> None:
    workers = client.read_workers_for_work_pool(pool)
    if not any(worker.status == WorkerStatus.ONLINE for worker in workers):
        raise PrerequisiteError(f"no worker serves the pool {pool}", "start one: make up")


def _wait(client: SyncPrefectClient, flow_run: FlowRun) -> FlowRun:
    """Return the flow run when it has ended; whatever ends the wait cancels it."""
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while flow_run.state is None or not flow_run.state.is_final():
            if time.monotonic() > deadline:
                raise ProcessError(f"it took longer than {_TIMEOUT_S / 3600:.0f} h")
            time.sleep(_POLL_S)
            flow_run = client.read_flow_run(flow_run.id)
    except BaseException:
        # Ctrl-C included: a stage goes on by itself otherwise, for a chain that is gone.
        client.set_flow_run_state(flow_run.id, Cancelling())
        raise
    return flow_run
