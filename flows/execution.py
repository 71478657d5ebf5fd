"""How a stage of a chain runs: reused if it is done, otherwise here or on its work pool."""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from flows.pools import run_on_pool
from flows.recording import Workplace
from tasks.evaluate_baselines import evaluate_baselines
from tasks.evaluate_model import evaluate_model
from tasks.prepare_data import prepare_data
from tasks.promote_model import promote_model
from tasks.synthesize_rows import synthesize_rows
from tasks.train_grpo import train_grpo
from tasks.train_sft import train_sft
from vf_pipeline.errors import VfError
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import StageOutputs
from vf_pipeline.runs.stages import StageName, reusable, stage_key
from vf_pipeline.serving.session import EngineSession

log = logging.getLogger(__name__)


ACTS: dict[StageName, Callable[[Run, EngineSession], StageOutputs]] = {
    "prepare": lambda run, _: prepare_data(run),
    "evaluate-base": partial(evaluate_model, stage="evaluate-base", of="prepare"),
    "evaluate-prompted": evaluate_baselines,
    "synthesize": synthesize_rows,
    "sft": train_sft,
    "evaluate-sft": partial(evaluate_model, stage="evaluate-sft", of="sft"),
    "grpo": train_grpo,
    "evaluate-trained": partial(evaluate_model, stage="evaluate-trained", of="grpo"),
    "promote": lambda run, _: promote_model(run),
}
"""The task of each stage."""


def run_stage(here: Workplace, name: StageName) -> Any:
    """Return what a stage made, now or before: the type that ``STAGES`` names for it.

    Raises:
        VfError: the stage failed; says which.
    """
    run = here.run
    made = reusable(run.config, run.manifest, name)
    if made is not None:
        log.info("%s: reused", name)
        return made
    started_at = time.time()
    log.info("%s: started", name)
    # Before the stage runs: what it was given, not what may be there afterwards.
    key = stage_key(run.config, run.manifest, name)
    inline = run.config.execution == "inline"
    try:
        made = ACTS[name](run, here.engine) if inline else run_on_pool(run, name, key)
    except VfError as error:
        error.message = f"{name}: {error.message}"
        raise
    run.manifest.record(name, key, asdict(made), started_at)
    log.info("%s: done in %.0f s", name, time.time() - started_at)
    return made
