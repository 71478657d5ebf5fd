"""Prepare the data of an environment and the weights of a model."""

from typing import Any

from prefect import flow

from flows.forms import Form
from flows.links import recorded
from flows.stages import run_stage
from tasks.run import open_run


@flow(name="prepare", flow_run_name="{form.environment}-{form.model}", validate_parameters=True)
def prepare_flow(form: Form) -> dict[str, Any]:
    """Load the environment, split its examples, and fetch the model's weights.

    Args:
        form: Which model and which environment.
    """
    with open_run(form.to_config(), fresh=form.fresh) as run, recorded(run):
        return run_stage(run, "prepare")
