"""Evaluate a model on a task that can be checked, and train it to be better at it.

``import vf_pipeline as vf`` gives what environments are written with. Names that need heavy
packages are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vf_pipeline.environments import (
    Environment,
    MultiTurnEnv,
    SingleTurnEnv,
    cleanup,
    stop,
    teardown,
)
from vf_pipeline.errors import (
    ConfigError,
    EnvironmentFault,
    GateError,
    PrerequisiteError,
    ProviderError,
    RubricError,
    StorageError,
    TrainingError,
    UnknownNameError,
    VfError,
)
from vf_pipeline.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
from vf_pipeline.registry import installed_environments, load_environment
from vf_pipeline.rubrics import Outcome, Rubric, RubricGroup
from vf_pipeline.types import (
    DatasetRef,
    EvalResult,
    Example,
    Failure,
    Info,
    Interval,
    Message,
    Messages,
    ModelRef,
    Rollout,
    SamplingArgs,
    Score,
    State,
    StopReason,
    TrainSample,
    Turn,
    Usage,
)

if TYPE_CHECKING:
    from vf_pipeline.configs import EvalSettings, InferenceSettings, PipelineConfig, load_config
    from vf_pipeline.data.files import read_examples, write_examples
    from vf_pipeline.data.split import split_examples
    from vf_pipeline.evaluation.evaluate import evaluate
    from vf_pipeline.inference.client import Client
    from vf_pipeline.inference.endpoints import Endpoint
    from vf_pipeline.models.resolve import resolve_model
    from vf_pipeline.rollouts.journal import read_journal
    from vf_pipeline.rollouts.runner import play
    from vf_pipeline.testing import EchoEnvironment, FakeClient, make_tiny_model

    __version__: str

__all__ = [
    "Client",
    "ConfigError",
    "DatasetRef",
    "EchoEnvironment",
    "Endpoint",
    "Environment",
    "EnvironmentFault",
    "EvalResult",
    "EvalSettings",
    "Example",
    "Failure",
    "FakeClient",
    "GateError",
    "InferenceSettings",
    "Info",
    "Interval",
    "MaybeThinkParser",
    "Message",
    "Messages",
    "ModelRef",
    "MultiTurnEnv",
    "Outcome",
    "Parser",
    "PipelineConfig",
    "PrerequisiteError",
    "ProviderError",
    "Rollout",
    "Rubric",
    "RubricError",
    "RubricGroup",
    "SamplingArgs",
    "Score",
    "SingleTurnEnv",
    "State",
    "StopReason",
    "StorageError",
    "ThinkParser",
    "TrainSample",
    "TrainingError",
    "Turn",
    "UnknownNameError",
    "Usage",
    "VfError",
    "XMLParser",
    "__version__",
    "cleanup",
    "evaluate",
    "installed_environments",
    "load_config",
    "load_environment",
    "make_tiny_model",
    "play",
    "read_examples",
    "read_journal",
    "resolve_model",
    "split_examples",
    "stop",
    "teardown",
    "write_examples",
]

_LAZY = {
    "Client": "vf_pipeline.inference.client",
    "EchoEnvironment": "vf_pipeline.testing",
    "Endpoint": "vf_pipeline.inference.endpoints",
    "EvalSettings": "vf_pipeline.configs",
    "FakeClient": "vf_pipeline.testing",
    "InferenceSettings": "vf_pipeline.configs",
    "PipelineConfig": "vf_pipeline.configs",
    "evaluate": "vf_pipeline.evaluation.evaluate",
    "load_config": "vf_pipeline.configs",
    "make_tiny_model": "vf_pipeline.testing",
    "play": "vf_pipeline.rollouts.runner",
    "read_examples": "vf_pipeline.data.files",
    "read_journal": "vf_pipeline.rollouts.journal",
    "resolve_model": "vf_pipeline.models.resolve",
    "split_examples": "vf_pipeline.data.split",
    "write_examples": "vf_pipeline.data.files",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("vf-pipeline")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "0.0.0"
