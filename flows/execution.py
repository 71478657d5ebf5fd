"""How a stage of a chain runs: reused if it is done, otherwise here or on its work pool."""

import logging
import time
from collections.abc import Callable
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
from vf_pipeline.runs.stages import StageName, reusable, stage_key

log = logging.getLogger(__name__)


def _evaluate(stage: StageName, of: StageName) -> Callable[[Workplace], dict[str, Any]]:
    return lambda here: evaluate_model(here.run, here.engine, stage, here.run.model(of))


ACTS: dict[StageName, Callable[[Workplace], dict[str, Any]]] = {
    "prepare": lambda here: prepare_data(here.run),
    "evaluate-base": _evaluate("evaluate-base", "prepare"),
    "evaluate-prompted": lambda here: evaluate_baselines(here.run, here.engine),
    "synthesize": lambda here: synthesize_rows(here.run, here.engine),
    "sft": lambda here: train_sft(here.run, here.engine),
    "evaluate-sft": _evaluate("evaluate-sft", "sft"),
    "grpo": lambda here: train_grpo(here.run, here.engine),
    "evaluate-trained": _evaluate("evaluate-trained", "grpo"),
    "promote": lambda here: promote_model(here.run),
}
"""The task of each stage."""


def run_stage(here: Workplace, name: StageName) -> dict[str, Any]:
    """Return what a stage made: now, or before.

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
    key = stage_key(run.config, run.manifest, name)
    inline = run.config.execution == "inline"
    try:
        made = ACTS[name](here) if inline else run_on_pool(run, name, key)
    except VfError as error:
        error.message = f"{name}: {error.message}"
        raise
    run.manifest.record(name, key, made, started_at)
    log.info("%s: done in %.0f s", name, time.time() - started_at)
    return made
