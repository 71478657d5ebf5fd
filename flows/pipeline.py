"""The chain: measure a model, make data with it, train it, measure again, promote if better."""

from typing import Any

from prefect import flow

from flows.forms import PipelineForm
from flows.links import recorded
from flows.stages import run_stage
from tasks.artifacts import publish_verdict
from tasks.run import open_run


@flow(name="pipeline", flow_run_name="{form.name}-{form.environment}", validate_parameters=True)
def pipeline_flow(form: PipelineForm) -> dict[str, Any]:
    """Measure, synthesize, train, measure again, and promote the model if it is better.

    Args:
        form: What to run; the same settings find the same run again and resume it.
    """
    with open_run(form.to_config(), fresh=form.fresh) as run, recorded(run):
        run_stage(run, "prepare")
        run_stage(run, "evaluate-base")
        run_stage(run, "synthesize")
        run_stage(run, "sft")
        run_stage(run, "evaluate-sft")
        run_stage(run, "grpo")
        run_stage(run, "evaluate-trained")
        outcome = run_stage(run, "promote")
        publish_verdict(run, outcome["verdict"])
        run.manifest.note(published=True)
        return outcome
