"""One stage of a chain, on its work pool: the chain starts it there and waits for it."""

from dataclasses import asdict

from prefect import flow
from prefect.runtime import flow_run

from flows.execution import ACTS
from flows.handover import error_handed_over, write_outputs
from flows.recording import opened
from vf_pipeline.runs import read_run_config, runs_dir
from vf_pipeline.runs.stages import StageName, stage_key

WAIT_S = 120.0
"""How long a stage waits for one that an earlier chain of this run has left, in seconds."""


@flow(name="stage", flow_run_name="{stage}-{run}", validate_parameters=True)
def stage_flow(run: str, stage: StageName) -> None:
    """Run one stage of a chain that waits for it.

    Args:
        run: Name of the run's folder.
        stage: Which stage.
    """
    folder = runs_dir() / run
    with error_handed_over(folder, stage, str(flow_run.get_id())):
        config = read_run_config(folder)
        # A chain that was killed may have left its stage running: it has been told to stop.
        with opened(config, of_chain=True, wait_s=WAIT_S) as here:
            # The chain compares it with its own: a worker on another checkout, or another manifest,
            # shows.
            key = stage_key(config, here.run.manifest, stage)
            made = ACTS[stage](here.run, here.engine)
            write_outputs(folder, stage, key, asdict(made))
