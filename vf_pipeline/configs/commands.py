"""What is asked at the doors: the options of the commands and what the UI's forms start from.

Only what differs from the chain's own settings is written here; the rest is taken over from them.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from vf_pipeline.configs.options import same_field
from vf_pipeline.configs.settings import (
    DataSettings,
    EvalSettings,
    InferenceSettings,
    ModelSettings,
    PipelineConfig,
    Settings,
)


class EvalCommandSettings(Settings):
    """The options of ``vf-eval``; spellings, and 5 × 3 rollouts, are upstream's."""

    env: str
    """Id of an installed environment."""
    env_args: str = "{}"
    """Arguments of its load_environment(), as JSON."""
    model: str = same_field(
        ModelSettings,
        "name",
        description="Name, local folder, hub id, or name at the endpoint; 'fake' repeats the "
        "question.",
    )
    api_base_url: str = ""
    """URL of an OpenAI-compatible endpoint; without it the model is served here."""
    api_key_var: str = same_field(InferenceSettings, "api_key_var")
    num_examples: int = Field(5, ge=-1)
    """Examples, -1 for all."""
    rollouts_per_example: int = same_field(EvalSettings, "rollouts_per_example", default=3)
    max_concurrent: int = same_field(EvalSettings, "max_concurrent")
    max_tokens: int | None = same_field(EvalSettings, "max_tokens", default=None)
    temperature: float | None = same_field(EvalSettings, "temperature", default=None)
    sampling_args: str = "{}"
    """Further sampling arguments, as JSON; they win over -t and -T."""
    seed: int = same_field(PipelineConfig, "seed", description="Seed of sampling.")
    output_dir: str = "outputs/evals"
    """Folder of the results, with one folder for each set of settings."""
    fresh: bool = False
    """Play everything again."""
    as_json: bool = False
    """Print the result as JSON."""
    verbose: bool = False
    """Log what happens, on stderr."""
    debug: bool = False
    """Show tracebacks."""


class ServeCommandSettings(Settings):
    """The options of ``vf-serve``."""

    model: str = same_field(ModelSettings, "name")
    served_model_name: str = ""
    """Model name in requests; the model's own when it is not given."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    max_batch: int = same_field(InferenceSettings, "max_batch")
    max_context: int = same_field(InferenceSettings, "max_context")
    kv_budget_mb: int = same_field(InferenceSettings, "kv_budget_mb")
    threads: int = same_field(InferenceSettings, "threads")
    weights_root: tuple[Path, ...] = ()
    """Folder below which /update_weights may read; may be given more than once."""
    weight_version: str = ""
    """Name of the weights that are loaded; their digest when it is not given."""
    deterministic: bool = False
    """Same bits each time; slow."""
    seed: int = same_field(PipelineConfig, "seed", description="Seed of requests that bring none.")
    verbose: bool = False
    """Log more."""


class FormSettings(PipelineConfig):
    """What a form of the UI starts from."""

    name: str = same_field(PipelineConfig, "name", default="form")


class HeldOutData(DataSettings):
    """Which examples a model is measured on."""

    # An evaluation uses the held-out part alone; the parts after it do not change what is in it.
    synth_examples: int = same_field(DataSettings, "synth_examples", default=0)
    train_examples: int = same_field(DataSettings, "train_examples", default=0)


class EvaluationFormSettings(FormSettings):
    """What the form of an evaluation starts from: any dataset that has the held-out examples."""

    data: HeldOutData = Field(HeldOutData(), title="Data")


class ChainFormSettings(FormSettings):
    """What the form of the whole chain starts from: a chain of the UI runs where its pools are."""

    execution: Literal["inline", "deployments"] = same_field(
        PipelineConfig, "execution", default="deployments"
    )


class EndpointModel(ModelSettings):
    """Which model of the endpoint is measured."""

    name: str = Field(min_length=1, title="Model there")
    """Name of the model at the endpoint."""


class EndpointInference(InferenceSettings):
    """Which endpoint serves the model."""

    engine: Literal["builtin", "endpoint"] = "endpoint"
    base_url: str = Field(min_length=1, title="URL")
    """URL of an OpenAI-compatible endpoint; ends with /v1."""
    api_key_var: str = same_field(
        InferenceSettings,
        "api_key_var",
        title="Key variable",
        description="Environment variable of the pool's worker that holds the endpoint's key.",
    )


class EndpointFormSettings(EvaluationFormSettings):
    """What the form for a model behind an endpoint starts from."""

    model: EndpointModel = Field(title="Model")
    inference: EndpointInference = Field(title="Endpoint")
