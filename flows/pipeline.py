"""The chain: measure a model, make data with it, train it, measure again, promote if better."""

from dataclasses import asdict
from typing import Any

from prefect import flow

from flows.execution import run_stage
from flows.forms import RUN_NAME, PipelineForm
from flows.recording import recorded
from tasks.publish_artifacts import publish_verdict
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.runs.outputs import Promoted


def run_chain(config: PipelineConfig, *, fresh: bool = False, wait_s: float = 0.0) -> Promoted:
    """Measure, synthesize, train, measure again, and promote the model if it is better.

    The one body under the form, the deployment and the command; the caller is a Prefect flow.
    """
    with recorded(config, fresh=fresh, wait_s=wait_s) as here:
        run_stage(here, "prepare")
        run_stage(here, "evaluate-base")
        run_stage(here, "evaluate-prompted")
        run_stage(here, "synthesize")
        run_stage(here, "sft")
        run_stage(here, "evaluate-sft")
        run_stage(here, "grpo")
        run_stage(here, "evaluate-trained")
        outcome = run_stage(here, "promote")
        publish_verdict(here.run, outcome.verdict)
        here.run.manifest.note(published=True)
        return outcome


@flow(name="pipeline", flow_run_name=RUN_NAME, validate_parameters=True)
def pipeline_flow(form: PipelineForm) -> dict[str, Any]:
    """Measure, synthesize, train, measure again, and promote the model if it is better.

    Args:
        form: What to run; the same settings find the same run again and resume it.
    """
    return asdict(run_chain(form.to_config(), fresh=form.fresh, wait_s=form.WAIT_S))


@flow(name="chain", flow_run_name="{config.name}-{config.environment.id}")
def chain_flow(config: PipelineConfig, fresh: bool = False) -> Promoted:
    """Run the chain of the command line, with all of its settings.

    Args:
        config: The settings.
        fresh: Whether an earlier run of the same settings is thrown away.
    """
    return run_chain(config, fresh=fresh)
