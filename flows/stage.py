"""One stage of a chain, on its work pool: the chain starts it there and waits for it."""

from prefect import flow

from flows.execution import ACTS
from flows.recording import opened
from vf_pipeline import storage
from vf_pipeline.runs import read_run_config, runs_dir
from vf_pipeline.runs.stages import StageName, stage_key


@flow(name="stage", flow_run_name="{stage}-{run}", validate_parameters=True)
def stage_flow(run: str, stage: StageName) -> None:
    """Run one stage of a chain that waits for it.

    Args:
        run: Name of the run's folder.
        stage: Which stage.
    """
    config = read_run_config(runs_dir() / run)
    with opened(config, of_chain=True) as here:
        key = stage_key(config, here.run.manifest, stage)
        made = {"key": key, "outputs": ACTS[stage](here)}
        storage.write_json(here.run.path("stages", f"{stage}.json"), made)
