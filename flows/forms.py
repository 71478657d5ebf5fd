"""The forms of the Prefect UI: one flat model a flow, and its way to the chain's settings."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from vf_pipeline.configs import PipelineConfig, load_config

_LAYOUT: dict[str, str] = {
    "name": "name",
    "environment": "environment.id",
    "model": "model.name",
    "seed": "seed",
    "base_url": "inference.base_url",
    "eval_examples": "data.eval_examples",
    "rollouts_per_example": "eval.rollouts_per_example",
    "temperature": "eval.temperature",
    "synth_examples": "data.synth_examples",
    "synth_rollouts": "synth.rollouts_per_example",
    "sft_lr": "sft.lr",
    "grpo_steps": "grpo.steps",
    "grpo_groups": "grpo.groups",
    "grpo_group_size": "grpo.group_size",
    "grpo_lr": "grpo.lr",
    "min_gain": "gate.min_gain",
    "execution": "execution",
}
"""Where each field of a form lies in the chain's settings."""


def _field(default: Any, title: str, description: str, position: int, **bounds: Any) -> Any:
    return Field(
        default,
        title=title,
        description=description,
        json_schema_extra={"position": position},
        **bounds,
    )


class Form(BaseModel):
    """Settings of a run."""

    model_config = ConfigDict(extra="forbid")

    WAIT_S: ClassVar[float] = 24 * 3600.0
    """How long a flow waits for another one of the very same settings, in seconds."""

    name: str = _field(
        "form", "Name", "Names the run's folder.", 0, pattern=r"^[a-z0-9][a-z0-9-]*$"
    )
    environment: str = _field("number-sense", "Environment", "Id of an installed environment.", 1)
    model: str = _field("smollm2-135m", "Model", "A known name, a local folder or a hub id.", 2)
    seed: int = _field(0, "Seed", "Seed of data, sampling and training.", 3, ge=0)
    fresh: bool = _field(False, "Start over", "Throw away an earlier run of the same settings.", 80)
    settings: list[str] = _field(
        [], "Further settings", "Lines of the form key=value, such as eval.max_tokens=16.", 90
    )

    def to_config(self) -> PipelineConfig:
        """Return the chain's settings.

        Raises:
            ConfigError: a further setting is unknown or out of bounds.
        """
        values: dict[str, Any] = {}
        for name in type(self).model_fields.keys() & _LAYOUT.keys():
            _put(values, _LAYOUT[name], getattr(self, name))
        if values.get("inference", {}).get("base_url"):
            values["inference"]["engine"] = "endpoint"
        base = PipelineConfig.model_validate(values).model_dump(exclude_defaults=True)
        lines = [f"{key}={_toml(value)}" for key, value in _flat(base).items()]
        return load_config(PipelineConfig, [], [*lines, *self.settings])


class EvaluationForm(Form):
    """Measure a model on an environment."""

    base_url: str = _field(
        "", "Endpoint", "URL of an OpenAI-compatible endpoint; empty is the built-in engine.", 4
    )
    eval_examples: int = _field(240, "Examples", "Held-out examples.", 5, ge=2, le=1_000_000)
    rollouts_per_example: int = _field(1, "Rollouts", "Plays of each example.", 6, ge=1, le=1024)
    temperature: float = _field(0.0, "Temperature", "0 is greedy.", 7, ge=0.0, le=5.0)


class SynthesisForm(Form):
    """Make SFT rows from accepted rollouts."""

    synth_examples: int = _field(160, "Examples", "Examples to sample.", 4, ge=1, le=1_000_000)
    synth_rollouts: int = _field(4, "Samples", "Samples of each example.", 5, ge=1, le=1024)


class TrainingForm(SynthesisForm):
    """Train a model: rows by rejection sampling, SFT on them, then GRPO."""

    sft_lr: float = _field(2e-5, "SFT learning rate", "Of AdamW.", 6, gt=0.0, le=1.0)
    grpo_steps: int = _field(20, "GRPO steps", "Optimizer steps.", 7, ge=1, le=1_000_000)
    grpo_groups: int = _field(8, "Groups", "Groups with a signal in a step.", 8, ge=1, le=4096)
    grpo_group_size: int = _field(8, "Group size", "Completions of a prompt.", 9, ge=2, le=1024)
    grpo_lr: float = _field(1e-5, "GRPO learning rate", "Of AdamW.", 10, gt=0.0, le=1.0)


class PipelineForm(TrainingForm):
    """The whole chain: measure, synthesize, train, measure again, and promote if better."""

    eval_examples: int = _field(240, "Held-out examples", "Trained on by no stage.", 11, ge=2)
    min_gain: float = _field(0.0, "Least gain", "The interval's lower end must exceed it.", 12)
    execution: Literal["inline", "deployments"] = _field(
        "deployments", "Execution", "Run stages here, or send each to its work pool.", 13
    )

    @classmethod
    def from_config(cls, config: PipelineConfig) -> "PipelineForm":
        """Return the form of these settings; what has no field of its own becomes a line."""
        flat = _flat(config.model_dump())
        fields = {name: flat.pop(key) for name, key in _LAYOUT.items() if name in cls.model_fields}
        usual = _flat(PipelineConfig().model_dump())
        lines = [f"{key}={_toml(value)}" for key, value in flat.items() if value != usual.get(key)]
        return cls(**fields, settings=lines)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
    values[last] = value


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict) and f"{prefix}{key}" != "environment.args"
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _toml(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return repr(value)
