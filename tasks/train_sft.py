"""Supervised warm start on the synthetic rows, in a child process."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from vf_pipeline.runs import Run, mlflow_uri
from vf_pipeline.runs.outputs import Synthesized, Trained
from vf_pipeline.runs.stages import stage_key
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.training.launch import run_training
from vf_pipeline.training.spec import TrainSpec

TIMEOUT_S = 6 * 3600.0


@task(name="train-sft", cache_policy=NO_CACHE)
def train_sft(run: Run, engine: EngineSession) -> Trained:
    """Return a reference to the model that imitates the accepted rows."""
    config = run.config
    rows = run.outputs("synthesize", Synthesized).rows
    base = run.model("prepare")
    with run.start_tracker("sft", stage_key(config, run.manifest, "sft")) as tracker:
        tracker.log_params(config.sft.model_dump() | {"model": base.uri})
        tracker.log_dataset(rows, f"{config.environment.id}/sft", "training")
        spec = TrainSpec(
            kind="sft",
            model_dir=base.uri,
            model_digest=base.digest,
            output_dir=str(run.path("sft", "model")),
            work_dir=str(run.path("sft")),
            sft=config.sft,
            seed=config.seed,
            threads=engine.threads(),
            rows_uri=rows.uri,
            rows_digest=rows.digest,
            tracking_uri=mlflow_uri(config),
            tracking_run_id=tracker.run_id,
        )
        result = run_training(spec, run_dir=run.folder, timeout_s=TIMEOUT_S)
    return Trained(result.model, result.steps, result.metrics)
