"""Train a model on an environment: rows, SFT, GRPO; without measuring it."""

from dataclasses import asdict
from typing import Any

from prefect import flow

from flows.execution import run_stage
from flows.forms import RUN_NAME, TrainingForm
from flows.recording import recorded
from tasks.publish_artifacts import publish_training


@flow(name="train", flow_run_name=RUN_NAME, validate_parameters=True)
def train_flow(form: TrainingForm) -> dict[str, Any]:
    """Make rows, warm the model up on them, and let the environment's rewards shape it.

    Args:
        form: Which model, which environment, and how it is trained.
    """
    with recorded(form.to_config(), fresh=form.fresh, wait_s=form.WAIT_S) as here:
        run_stage(here, "prepare")
        run_stage(here, "synthesize")
        run_stage(here, "sft")
        outcome = run_stage(here, "grpo")
        publish_training(here.run, outcome)
        return asdict(outcome)
