"""Train a model on an environment: rows, SFT, GRPO; without measuring it."""

from typing import Any

from prefect import flow

from flows.forms import TrainingForm
from flows.links import recorded
from flows.stages import run_stage
from tasks.artifacts import publish_training
from tasks.run import open_run


@flow(name="train", flow_run_name="{form.environment}-{form.model}", validate_parameters=True)
def train_flow(form: TrainingForm) -> dict[str, Any]:
    """Make rows, warm the model up on them, and let the environment's rewards shape it.

    Args:
        form: Which model, which environment, and how it is trained.
    """
    with open_run(form.to_config(), fresh=form.fresh) as run, recorded(run):
        run_stage(run, "prepare")
        run_stage(run, "synthesize")
        run_stage(run, "sft")
        outcome = run_stage(run, "grpo")
        publish_training(run, outcome)
        return outcome
