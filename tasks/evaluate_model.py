"""Play a model on the held-out examples and say how good it is, with its uncertainty."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of
from tasks.identity_of_run import identity_of, measured_by
from vf_pipeline.data.files import read_examples
from vf_pipeline.evaluation.evaluate import evaluate
from vf_pipeline.runs import Run
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.types import DatasetRef, ModelRef


@task(name="evaluate-model", task_run_name="{stage}", cache_policy=NO_CACHE)
def evaluate_model(run: Run, engine: EngineSession, stage: str, model: ModelRef) -> dict[str, Any]:
    """Return the result's numbers and where its rollouts lie."""
    config = run.config
    env = environment_of(run)
    data = DatasetRef(**run.stage_outputs["prepare"]["data"]["eval"])
    with run.start_tracker(stage) as tracker:
        tracker.log_params({"model": model.uri, "model_digest": model.digest})
        tracker.log_dataset(data, f"{env.env_id}/eval", "eval")
        result = evaluate(
            env,
            read_examples(Path(data.uri)),
            engine.endpoint_for(model),
            model_name=stage.removeprefix("evaluate-"),
            settings=config.eval,
            inference=config.inference,
            seed=config.seed,
            folder=run.path(stage),
            journal_settings=identity_of(run, model, data, eval=measured_by(run)),
            tracker=tracker,
        )
    return {"result": asdict(result), "rollouts": str(run.path(stage, "rollouts.jsonl"))}
