"""Every setting, once: frozen models that are the TOML file, the CLI help and the UI form."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The base of all settings: frozen, no unknown keys, attribute docstrings as descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EnvironmentSettings(Settings):
    """Which environment, and how it is loaded."""

    id: str = "number-sense"
    """Id of an installed environment."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its load_environment()."""


class ModelSettings(Settings):
    """Which model is measured and trained."""

    name: str = "smollm2-135m"
    """A name known here, a local folder of safetensors, or a hub id."""


class InferenceSettings(Settings):
    """How the model is served."""

    engine: Literal["builtin", "endpoint"] = "builtin"
    """The built-in torch engine, or an OpenAI-compatible endpoint that already runs."""
    base_url: str = ""
    """URL of the endpoint, for engine = "endpoint"; ends with /v1."""
    api_key_var: str = "OPENAI_API_KEY"
    """Environment variable that holds the endpoint's key."""
    max_batch: int = Field(64, ge=1, le=1024)
    """Most sequences the built-in engine decodes at once."""
    max_context: int = Field(512, ge=16)
    """Most tokens of prompt and completion together, in the built-in engine."""
    kv_budget_mb: int = Field(1024, ge=16)
    """Most memory of the built-in engine's key-value cache, in MB."""
    threads: int = Field(0, ge=0)
    """Threads of the built-in engine and of the trainer; 0 is one for each core."""
    ready_timeout_s: float = Field(180.0, gt=0)
    """How long a server may take to become ready, in seconds."""
    request_timeout_s: float = Field(120.0, gt=0)
    """How long one request may take, in seconds."""


class DataSettings(Settings):
    """How examples are split. No example is in two of the parts."""

    eval_examples: int = Field(240, ge=2, title="Held-out examples")
    """Held-out examples, which no stage trains on."""
    synth_examples: int = Field(160, ge=0, title="Examples for synthetic data")
    """Examples that synthetic data is made from."""
    train_examples: int = Field(2000, ge=0, title="Examples for GRPO")
    """Examples that GRPO draws from."""


class BaselineSettings(Settings):
    """One way of prompting the base model, which the trained model must beat."""

    shots: int = Field(0, ge=0)
    """Worked examples in front of the question, taken from the examples of synthesis."""
    max_tokens: int = Field(0, ge=0)
    """Most tokens sampled a turn, where that is more than eval.max_tokens."""


class EvalSettings(Settings):
    """How a model is measured."""

    rollouts_per_example: int = Field(1, ge=1)
    """Plays of each example."""
    max_concurrent: int = Field(64, ge=1)
    """Most rollouts in flight."""
    max_tokens: int = Field(8, ge=1)
    """Most tokens sampled a turn."""
    temperature: float = Field(0.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    max_error_fraction: float = Field(0.05, ge=0.0, le=1.0)
    """Share of failed rollouts above which the stage fails."""
    baselines: tuple[BaselineSettings, ...] = (
        BaselineSettings(max_tokens=64),
        BaselineSettings(shots=3, max_tokens=64),
        BaselineSettings(shots=8, max_tokens=64),
    )
    """Ways of prompting the base model that the trained one is compared with; [] is none."""

    def played_by(self) -> dict[str, Any]:
        """Return the settings that the rollouts of an evaluation depend on."""
        return self.model_dump(include={"rollouts_per_example", "max_tokens", "temperature"})


class SynthSettings(Settings):
    """How synthetic data is sampled and selected."""

    shots: int = Field(3, ge=0)
    """Worked examples in front of the question while sampling; the exported rows carry none."""
    rollouts_per_example: int = Field(4, ge=1, title="Samples per example")
    """Samples of each example."""
    keep_per_example: int = Field(1, ge=1)
    """Most accepted samples of one example."""
    temperature: float = Field(1.0, ge=0.0)
    """Sampling temperature."""
    max_tokens: int = Field(8, ge=1)
    """Most tokens sampled a turn."""
    min_reward: float = 1.0
    """Reward from which a sample is accepted."""
    min_rows: int = Field(16, ge=1)
    """Fewest accepted rows with which training makes sense."""
    max_concurrent: int = Field(64, ge=1)
    """Most rollouts in flight."""


class SftSettings(Settings):
    """Supervised warm start on the synthetic rows."""

    epochs: int = Field(1, ge=1)
    """Passes over the rows."""
    batch_rows: int = Field(16, ge=1)
    """Rows of one optimizer step."""
    lr: float = Field(2e-5, gt=0, le=1, title="Learning rate")
    """Learning rate of AdamW."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm that gradients are clipped to."""
    micro_tokens: int = Field(2048, ge=64)
    """Most padded tokens of one forward pass."""
    save_steps: int = Field(10, ge=1)
    """Steps between checkpoints."""

    def steps_of(self, rows: int) -> int:
        """Return the optimizer steps that a number of rows takes."""
        return self.epochs * math.ceil(rows / self.batch_rows)


class GrpoSettings(Settings):
    """Group-relative policy optimization."""

    steps: int = Field(20, ge=1)
    """Optimizer steps."""
    groups: int = Field(8, ge=1)
    """Groups with a learning signal in one step."""
    group_size: int = Field(8, ge=2)
    """Completions of one prompt."""
    lr: float = Field(5e-6, gt=0, le=1, title="Learning rate")
    """Learning rate of AdamW."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature, applied in the trainer as well."""
    max_tokens: int = Field(8, ge=1)
    """Most tokens sampled a turn."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip of the probability ratio."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip of the probability ratio."""
    scale_rewards: Literal["none", "group"] = "none"
    """Whether advantages are divided by their group's standard deviation."""
    max_staleness: int = Field(1, ge=0)
    """How many weight versions a sample may be behind; 0 is synchronous."""
    max_refill: int = Field(4, ge=1)
    """Batches of groups tried to find enough with a signal, as a multiple of the step's groups."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm that gradients are clipped to."""
    micro_tokens: int = Field(2048, ge=64)
    """Most padded tokens of one forward pass."""
    save_steps: int = Field(5, ge=1)
    """Steps between checkpoints."""
    stall_timeout_s: float = Field(120.0, gt=0)
    """How long the trainer waits for rollouts before it fails and says what it waited for."""


class GateSettings(Settings):
    """When the trained model is promoted.

    The gain is the one over the best prompted base: the best of ``eval.baselines`` and of the base
    as it is measured without them. What a prompt can do needs no training.
    """

    min_gain: float = Field(0.0, title="Least gain")
    """Gain over the best prompted base that the interval's lower end must exceed."""


class TrackingSettings(Settings):
    """Where metrics and artifacts go."""

    mlflow_uri: str = ""
    """MLflow tracking URI; empty is the sqlite file under .vf/."""
    experiment: str = ""
    """MLflow experiment; empty is vf/<environment>."""


class PipelineConfig(Settings):
    """The whole chain: prepare, evaluate, synthesize, SFT, GRPO, evaluate, promote."""

    name: str = Field("quickstart", pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name of the run; its folder is runs/NAME-DIGEST."""
    seed: int = Field(0, ge=0)
    """Seed of data, sampling and training."""
    execution: Literal["inline", "deployments"] = "inline"
    """Run stages in this process, or send each to its Prefect work pool."""
    environment: EnvironmentSettings = Field(EnvironmentSettings(), title="Environment")
    model: ModelSettings = Field(ModelSettings(), title="Model")
    inference: InferenceSettings = Field(InferenceSettings(), title="Serving")
    data: DataSettings = Field(DataSettings(), title="Data")
    eval: EvalSettings = Field(EvalSettings(), title="Evaluation")
    synth: SynthSettings = Field(SynthSettings(), title="Synthetic data")
    sft: SftSettings = Field(SftSettings(), title="SFT")
    grpo: GrpoSettings = Field(GrpoSettings(), title="GRPO")
    gate: GateSettings = Field(GateSettings(), title="Gate")
    tracking: TrackingSettings = Field(TrackingSettings(), title="Tracking")
