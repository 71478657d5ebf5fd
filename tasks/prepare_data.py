"""Load the environment and split its examples into parts that share none."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of, identity_of_environment
from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.data.files import write_examples
from vf_pipeline.data.split import split_examples
from vf_pipeline.models.resolve import resolve_model
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import Prepared
from vf_pipeline.types import DatasetRef, ModelRef


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_data(run: Run) -> Prepared:
    """Return references to the data parts and to the base model."""
    config = run.config
    env = environment_of(run)
    sizes = {
        "eval": config.data.eval_examples,
        "synth": config.data.synth_examples,
        "train": config.data.train_examples,
    }
    parts = split_examples(env.examples("train"), sizes, config.seed)
    model = model_of(config)
    with run.start_tracker("prepare") as tracker:
        data: dict[str, DatasetRef] = {}
        for name, examples in parts.items():
            ref = write_examples(run.path("prepare", f"{name}.parquet"), examples)
            tracker.log_dataset(ref, f"{config.environment.id}/{name}", "source")
            data[name] = ref
        tracker.log_metrics({f"rows/{name}": float(ref.rows) for name, ref in data.items()})
        tracker.log_params({"environment": env.env_id, "environment_version": env.version})
    return Prepared(data, model, identity_of_environment(env))


def model_of(config: PipelineConfig) -> ModelRef:
    """Return the weights; at an endpoint a model is its name there."""
    if config.inference.engine == "endpoint":
        identity = {"base_url": config.inference.base_url, "model": config.model.name}
        return ModelRef(config.model.name, storage.digest_json(identity))
    return resolve_model(config.model.name)
