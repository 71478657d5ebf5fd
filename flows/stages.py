"""How a stage of the chain runs: reused if it is done, otherwise here or on its work pool."""

import logging
import time
from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.deployments import run_deployment

from flows.graph import GRAPH, StageName, reusable, stage_key
from tasks.evaluate_model import evaluate_model
from tasks.prepare_data import prepare_data
from tasks.promote_model import promote_model
from tasks.run import Run, open_run, read_run_config, runs_dir
from tasks.synthesize_rows import synthesize_rows
from tasks.train_grpo import train_grpo
from tasks.train_sft import train_sft
from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import ConfigError, ProcessError, VfError
from vf_pipeline.manifest import Manifest

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
        VfError: the stage failed; says which, and how to go on.
    """
    made = reusable(run, name)
    if made is not None:
        log.info("%s: reused", name)
        return made
    started_at = time.time()
    log.info("%s: started", name)
    key = stage_key(run, name)
    inline = run.config.execution == "inline"
    made = ACTS[name](run) if inline else _run_on_pool(run, name, key)
    run.manifest.record(name, key, made, started_at)
    log.info("%s: done in %.0f s", name, time.time() - started_at)
    return made


def _run_on_pool(run: Run, name: StageName, key: str) -> dict[str, Any]:
    """Send the stage to its pool and wait; the result comes back as a file beside its key."""
    pool = GRAPH[name].pool
    parameters = {"run": run.folder.name, "stage": name}
    flow_run = run_deployment(f"stage/{pool}", parameters=parameters, timeout=24 * 3600)
    state = flow_run.state
    if state is None or not state.is_completed():
        raise ProcessError(
            f"stage {name} on pool vf-{pool} ended {state.name if state else 'without a state'}: "
            f"{(state.message if state else '') or 'see its logs in the Prefect UI'}",
            "mend the cause, then run the same command again",
        )
    result = storage.read_json(run.path("stages", f"{name}.json"))
    if result["key"] != key:
        raise VfError(f"stage {name} returned the result of other inputs", "run again with --fresh")
    # The stage wrote its MLflow run's id down; this process waited and wrote nothing meanwhile.
    run.manifest.facts = Manifest.open(run.folder).facts
    return dict(result["outputs"])


@flow(name="stage", flow_run_name="{stage}-{run}", validate_parameters=True)
def stage_flow(run: str, stage: StageName) -> None:
    """Run one stage of a chain that waits for it.

    Args:
        run: Name of the run's folder.
        stage: Which stage.
    """
    folder = runs_dir() / run
    if not (folder / "config.json").exists():
        raise ConfigError(f"no run {run!r} in {runs_dir()}", "start the chain, not its stages")
    config: PipelineConfig = read_run_config(folder)
    with open_run(config, locked=False) as here:
        key = stage_key(here, stage)
        outputs = ACTS[stage](here)
        result = {"key": key, "outputs": outputs}
        storage.write_json(here.path("stages", f"{stage}.json"), result)
