"""What each stage makes, as types: small references and numbers, never data.

The manifest keeps them as JSON; here they become what the next stage is given.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vf_pipeline.errors import StorageError
from vf_pipeline.types import DatasetRef, EvalResult, Interval, ModelRef


@dataclass(frozen=True, slots=True)
class EnvironmentIdentity:
    """Which environment: the version of its project, and the digest of its rubric."""

    version: str
    rubric: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Parts of the data that share no example ("eval", "synth", "train"), and the base model."""

    data: dict[str, DatasetRef]
    model: ModelRef
    environment: EnvironmentIdentity


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A measured model: its result, and the journal of its rollouts."""

    result: EvalResult
    rollouts: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """A prompting of the base model that was measured: worked examples and most tokens a turn."""

    label: str
    shots: int
    max_tokens: int
    result: EvalResult
    rollouts: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A prompting that the environment has no place for, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Baselines:
    """The promptings of the base model: those measured, and those left out."""

    baselines: tuple[Baseline, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Synthesized:
    """SFT rows, and how many rollouts passed each step of their selection."""

    rows: DatasetRef
    funnel: dict[str, int]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model, its optimizer steps, and the last step's metrics (the first's: "first/")."""

    model: ModelRef
    steps: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promoted:
    """The verdict, first line first; the gains by name; where report and model are."""

    passed: bool
    verdict: tuple[str, ...]
    gains: dict[str, Interval]
    best_prompted: str
    model_version: str
    report: str


StageOutputs = Prepared | Evaluated | Baselines | Synthesized | Trained | Promoted

Made = TypeVar("Made", Prepared, Evaluated, Baselines, Synthesized, Trained, Promoted)


def read_outputs(kind: type[Made], values: dict[str, Any], stage: str) -> Made:
    """Return a stage's outputs from their JSON values.

    Raises:
        StorageError: they are not of this kind: another version wrote them.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        # One is enough: a record of another version has as many as it has fields.
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StorageError(
            f"what the stage {stage} has left is not what this version reads: {where}: "
            f"{first['msg']}",
            "run again with --fresh",
        ) from None
