"""How a stage of the chain runs: reused if it is done, otherwise here or on its work pool."""

import logging
import time
from collections.abc import Callable
from typing import Any

from prefect import flow

from flows.graph import StageName, reusable, stage_key
from flows.pools import run_on_pool
from tasks.evaluate_model import evaluate_model
from tasks.prepare_data import prepare_data
from tasks.promote_model import promote_model
from tasks.run import Run, open_run, read_run_config, runs_dir
from tasks.synthesize_rows import synthesize_rows
from tasks.train_grpo import train_grpo
from tasks.train_sft import train_sft
from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import VfError

log = logging.getLogger(__name__)

ACTS: dict[StageName, Callable[[Run], dict[str, Any]]] = {
    "prepare": prepare_data,
    "evaluate-base": lambda run: evaluate_model(run, "evaluate-base", run.model("prepare")),
    "synthesize": synthesize_rows,
    "sft": train_sft,
    "evaluate-sft": lambda run: evaluate_model(run, "evaluate-sft", run.model("sft")),
    "grpo": train_grpo,
    "evaluate-trained": lambda run: evaluate_model(run, "evaluate-trained", run.model("grpo")),
    "promote": promote_model,
}
"""The task of each stage."""


def run_stage(run: Run, name: StageName) -> dict[str, Any]:
    """Return what a stage made: now, or before.

    Raises:
        VfError: the stage failed; says which.
    """
    made = reusable(run.config, run.manifest, name)
    if made is not None:
        log.info("%s: reused", name)
        return made
    started_at = time.time()
    log.info("%s: started", name)
    key = stage_key(run.config, run.manifest, name)
    inline = run.config.execution == "inline"
    try:
        made = ACTS[name](run) if inline else run_on_pool(run, name, key)
    except VfError as error:
        error.message = f"{name}: {error.message}"
        raise
    run.manifest.record(name, key, made, started_at)
    log.info("%s: done in %.0f s", name, time.time() - started_at)
    return made


@flow(name="stage", flow_run_name="{stage}-{run}", validate_parameters=True)
def stage_flow(run: str, stage: StageName) -> None:
    """Run one stage of a chain that waits for it.

    Args:
        run: Name of the run's folder.
        stage: Which stage.
    """
    config: PipelineConfig = read_run_config(runs_dir() / run)
    with open_run(config, of_chain=True) as here:
        result = {"key": stage_key(config, here.manifest, stage), "outputs": ACTS[stage](here)}
        storage.write_json(here.path("stages", f"{stage}.json"), result)
