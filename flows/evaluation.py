"""Measure one model on one environment."""

from typing import Any

from prefect import flow

from flows.forms import EvaluationForm
from flows.links import recorded
from flows.stages import run_stage
from tasks.artifacts import publish_evaluation
from tasks.run import open_run


@flow(name="evaluate", flow_run_name="{form.environment}-{form.model}", validate_parameters=True)
def evaluate_flow(form: EvaluationForm) -> dict[str, Any]:
    """Say how good a model is on held-out examples, with a 95 % interval.

    Args:
        form: Which model, which environment, how many examples.
    """
    with open_run(form.to_config(), fresh=form.fresh) as run, recorded(run):
        run_stage(run, "prepare")
        outcome = run_stage(run, "evaluate-base")
        publish_evaluation(run, outcome["result"])
        return outcome
