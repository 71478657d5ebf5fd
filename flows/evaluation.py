"""Measure one model on one environment: weights served here, or a model behind an endpoint."""

from dataclasses import asdict
from typing import Any

from prefect import flow

from flows.execution import run_stage
from flows.forms import RUN_NAME, EndpointForm, EvaluationForm
from flows.recording import recorded
from tasks.publish_artifacts import publish_evaluation


@flow(name="evaluate", flow_run_name=RUN_NAME, validate_parameters=True)
def evaluate_flow(form: EvaluationForm) -> dict[str, Any]:
    """Say how good a model is on held-out examples, with a 95 % interval.

    Args:
        form: Which model, which environment, how many examples.
    """
    return _evaluate(form)


@flow(name="evaluate-endpoint", flow_run_name=RUN_NAME, validate_parameters=True)
def evaluate_endpoint_flow(form: EndpointForm) -> dict[str, Any]:
    """Say how good the model behind an endpoint is on held-out examples, with a 95 % interval.

    Args:
        form: Which model of which endpoint, which environment, how many examples.
    """
    return _evaluate(form)


def _evaluate(form: EvaluationForm | EndpointForm) -> dict[str, Any]:
    with recorded(form.to_config(), fresh=form.fresh, wait_s=form.WAIT_S) as here:
        run_stage(here, "prepare")
        outcome = run_stage(here, "evaluate-base")
        publish_evaluation(here.run, outcome.result)
        return asdict(outcome)
