"""The forms of the Prefect UI: which settings each flow asks for, by the sections of the chain."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.form_fields import asked, form_of, shown
from vf_pipeline import installed_environments
from vf_pipeline.configs import (
    ChainFormSettings,
    EndpointFormSettings,
    EnvironmentSettings,
    EvaluationFormSettings,
    FormSettings,
    ModelSettings,
    PipelineConfig,
    load_config,
)
from vf_pipeline.configs.commands import EndpointModel
from vf_pipeline.models.wheels import KNOWN

RUN_NAME = "{form.name}-{form.environment}-{form.model}"
"""How a flow run is named after its form."""


class Form(BaseModel):
    """What is run, on which model and which environment."""

    model_config = ConfigDict(extra="forbid")

    CONFIG: ClassVar[type[PipelineConfig]] = FormSettings
    """The settings that the form starts from."""
    WAIT_S: ClassVar[float] = 24 * 3600.0
    """How long a flow waits for another one of the very same settings, in seconds."""

    name: str = shown(FormSettings, "name", 0)
    environment: str = asked(
        EnvironmentSettings, "id", 1, title="Environment", known=installed_environments
    )
    model: str = asked(ModelSettings, "name", 2, title="Model", known=lambda: KNOWN)
    seed: int = shown(FormSettings, "seed", 3)
    fresh: bool = Field(
        False,
        title="Start over",
        description="Throw away an earlier run of the same settings.",
        json_schema_extra={"position": 80},
    )
    settings: list[str] = Field(
        [],
        title="Further settings",
        description="Lines of the form key=value, such as grpo.clip_low=0.1.",
        json_schema_extra={"position": 90},
    )

    def to_config(self) -> PipelineConfig:
        """Return the chain's settings.

        Raises:
            ConfigError: a further setting is out of bounds, or not of the form key=value.
            UnknownNameError: there is no such further setting.
        """
        values = self.model_dump(exclude={"environment", "model", "fresh", "settings"})
        values |= {"environment": {"id": self.environment}, "model": {"name": self.model}}
        config = load_config(self.CONFIG, [], self.settings, values=values)
        return PipelineConfig.model_validate(config.model_dump())


class _EvaluationForm(Form):
    """Which model is measured, on which environment."""

    CONFIG = EvaluationFormSettings


class _EndpointForm(Form):
    """Which model of which endpoint is measured, on which environment."""

    CONFIG = EndpointFormSettings
    model: str = shown(EndpointModel, "name", 2)


class _ChainForm(Form):
    """The whole chain: measure, synthesize, train, measure again, and promote if better."""

    CONFIG = ChainFormSettings
    execution: Literal["inline", "deployments"] = shown(ChainFormSettings, "execution", 4)


_EVAL = ("rollouts_per_example", "max_tokens", "temperature")
_SYNTH = ("rollouts_per_example", "shots", "max_tokens", "temperature", "min_reward")
_SFT = ("epochs", "lr")
_GRPO = ("steps", "groups", "group_size", "lr", "max_tokens")

PreparationForm = form_of(
    Form,
    "PreparationForm",
    FormSettings,
    data=("eval_examples", "synth_examples", "train_examples"),
)
EvaluationForm = form_of(
    _EvaluationForm,
    "EvaluationForm",
    EvaluationFormSettings,
    data=("eval_examples",),
    eval=_EVAL,
)
EndpointForm = form_of(
    _EndpointForm,
    "EndpointForm",
    EndpointFormSettings,
    inference=("base_url", "api_key_var"),
    data=("eval_examples",),
    eval=(*_EVAL, "max_concurrent"),
)
SynthesisForm = form_of(
    Form,
    "SynthesisForm",
    FormSettings,
    data=("synth_examples",),
    synth=_SYNTH,
)
TrainingForm = form_of(
    Form,
    "TrainingForm",
    FormSettings,
    data=("synth_examples", "train_examples"),
    synth=_SYNTH,
    sft=_SFT,
    grpo=_GRPO,
)
PipelineForm = form_of(
    _ChainForm,
    "PipelineForm",
    ChainFormSettings,
    data=("eval_examples", "synth_examples", "train_examples"),
    eval=_EVAL,
    synth=_SYNTH,
    sft=_SFT,
    grpo=_GRPO,
    gate=("min_gain",),
)
