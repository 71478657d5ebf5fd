"""Settings: the one source of every default, bound and help text; and how they are read.

``load_config(PipelineConfig, ["x.toml"], ["grpo.steps=5"])`` reads files left to right, then the
overrides. CLI options and UI forms are derived from the same fields.
"""

from vf_pipeline.configs.commands import (
    ChainFormSettings,
    EndpointFormSettings,
    EvalCommandSettings,
    EvaluationFormSettings,
    FormSettings,
    ServeCommandSettings,
)
from vf_pipeline.configs.loading import load_config, validate
from vf_pipeline.configs.options import add_option, same_field
from vf_pipeline.configs.settings import (
    BaselineSettings,
    DataSettings,
    EnvironmentSettings,
    EvalSettings,
    GateSettings,
    GrpoSettings,
    InferenceSettings,
    ModelSettings,
    PipelineConfig,
    Settings,
    SftSettings,
    SynthSettings,
    TrackingSettings,
)

__all__ = [
    "BaselineSettings",
    "ChainFormSettings",
    "DataSettings",
    "EndpointFormSettings",
    "EnvironmentSettings",
    "EvalCommandSettings",
    "EvalSettings",
    "EvaluationFormSettings",
    "FormSettings",
    "GateSettings",
    "GrpoSettings",
    "InferenceSettings",
    "ModelSettings",
    "PipelineConfig",
    "ServeCommandSettings",
    "Settings",
    "SftSettings",
    "SynthSettings",
    "TrackingSettings",
    "add_option",
    "load_config",
    "same_field",
    "validate",
]
