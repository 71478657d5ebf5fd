"""Prepare the data of an environment and the weights of a model."""

from dataclasses import asdict
from typing import Any

from prefect import flow

from flows.execution import run_stage
from flows.forms import RUN_NAME, PreparationForm
from flows.recording import recorded


@flow(name="prepare", flow_run_name=RUN_NAME, validate_parameters=True)
def prepare_flow(form: PreparationForm) -> dict[str, Any]:
    """Load the environment, split its examples, and fetch the model's weights.

    Args:
        form: Which model and which environment.
    """
    with recorded(form.to_config(), fresh=form.fresh, wait_s=form.WAIT_S) as here:
        return asdict(run_stage(here, "prepare"))
