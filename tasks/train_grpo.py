"""GRPO on the environment: an engine that samples, a child process that trains."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of
from vf_pipeline.runs import Run, mlflow_uri
from vf_pipeline.runs.outputs import Trained
from vf_pipeline.runs.stages import stage_key
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.training.launch import run_training
from vf_pipeline.training.spec import TrainSpec

TIMEOUT_S = 7 * 24 * 3600.0


@task(name="train-grpo", cache_policy=NO_CACHE)
def train_grpo(run: Run, engine: EngineSession) -> Trained:
    """Return a reference to the model that the rewards have shaped."""
    config = run.config
    data = run.prepared.data["train"]
    warm = run.model("sft")
    environment_of(run)  # refuses one that has changed; the rollout worker loads its own
    endpoint = engine.endpoint_for(warm)
    with run.start_tracker("grpo", stage_key(config, run.manifest, "grpo")) as tracker:
        tracker.log_params(config.grpo.model_dump() | {"model": warm.uri})
        tracker.log_dataset(data, f"{config.environment.id}/train", "training")
        spec = TrainSpec(
            kind="grpo",
            model_dir=warm.uri,
            model_digest=warm.digest,
            output_dir=str(run.path("grpo", "model")),
            work_dir=str(run.path("grpo")),
            grpo=config.grpo,
            seed=config.seed,
            threads=engine.threads(),
            environment=config.environment,
            examples_uri=data.uri,
            examples_digest=data.digest,
            base_url=endpoint.base_url,
            served_model=endpoint.model,
            weights_dir=str(run.path("weights")),
            tracking_uri=mlflow_uri(config),
            tracking_run_id=tracker.run_id,
        )
        result = run_training(spec, run_dir=run.folder, timeout_s=TIMEOUT_S)
    return Trained(result.model, result.steps, result.metrics)
