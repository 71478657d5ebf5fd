"""Play a model on the held-out examples and say how good it is, with its uncertainty."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of
from vf_pipeline.data.files import read_examples
from vf_pipeline.evaluation.evaluate import evaluate
from vf_pipeline.rollouts.identity import journal_identity
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import Evaluated
from vf_pipeline.runs.stages import StageName
from vf_pipeline.serving.session import EngineSession


@task(name="evaluate-model", task_run_name="{stage}", cache_policy=NO_CACHE)
def evaluate_model(run: Run, engine: EngineSession, stage: StageName, of: StageName) -> Evaluated:
    """Return the result of the model that stage ``of`` made, and where its rollouts lie."""
    config, model = run.config, run.model(of)
    env = environment_of(run)
    data = run.prepared.data["eval"]
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
            journal_settings=journal_identity(
                env,
                model=model.digest,
                data=data.digest,
                seed=config.seed,
                eval=config.eval.played_by(),
            ),
            tracker=tracker,
        )
    return Evaluated(result, str(run.path(stage, "rollouts.jsonl")))
