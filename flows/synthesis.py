"""Make SFT rows from a model's own accepted rollouts."""

from typing import Any

from prefect import flow

from flows.forms import SynthesisForm
from flows.links import recorded
from flows.stages import run_stage
from tasks.artifacts import publish_rows
from tasks.run import open_run


@flow(name="synthesize", flow_run_name="{form.environment}-{form.model}", validate_parameters=True)
def synthesize_flow(form: SynthesisForm) -> dict[str, Any]:
    """Sample from a few-shot prompt, keep what the rubric accepts, export zero-shot rows.

    Args:
        form: Which model, which environment, how many samples.
    """
    with open_run(form.to_config(), fresh=form.fresh) as run, recorded(run):
        run_stage(run, "prepare")
        outcome = run_stage(run, "synthesize")
        publish_rows(run, outcome)
        return outcome
