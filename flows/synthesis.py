"""Make SFT rows from a model's own accepted rollouts."""

from dataclasses import asdict
from typing import Any

from prefect import flow

from flows.execution import run_stage
from flows.forms import RUN_NAME, SynthesisForm
from flows.recording import recorded
from tasks.publish_artifacts import publish_rows


@flow(name="synthesize", flow_run_name=RUN_NAME, validate_parameters=True)
def synthesize_flow(form: SynthesisForm) -> dict[str, Any]:
    """Sample from a few-shot prompt, keep what the rubric accepts, export zero-shot rows.

    Args:
        form: Which model, which environment, how many samples.
    """
    with recorded(form.to_config(), fresh=form.fresh, wait_s=form.WAIT_S) as here:
        run_stage(here, "prepare")
        outcome = run_stage(here, "synthesize")
        publish_rows(here.run, outcome)
        return asdict(outcome)
