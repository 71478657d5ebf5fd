"""The chain's stages: what each needs and depends on, and which work pool it belongs to.

Deliberately knows nothing of Prefect, so that a plan and a finished run need no server.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.runs.manifest import Manifest
from vf_pipeline.runs.outputs import (
    Baselines,
    Evaluated,
    Prepared,
    Promoted,
    StageOutputs,
    Synthesized,
    Trained,
    read_outputs,
)

StageName = Literal[
    "prepare",
    "evaluate-base",
    "evaluate-prompted",
    "synthesize",
    "sft",
    "evaluate-sft",
    "grpo",
    "evaluate-trained",
    "promote",
]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: which ones it needs, the settings it depends on, what it makes, and its pool."""

    needs: tuple[StageName, ...]
    settings: tuple[str, ...]
    makes: type[Any]
    pool: Literal["cpu", "gpu"] = "cpu"


STAGES: dict[StageName, Stage] = {
    "prepare": Stage((), ("environment", "model", "data", "seed"), Prepared),
    "evaluate-base": Stage(("prepare",), ("eval", "seed"), Evaluated, "gpu"),
    "evaluate-prompted": Stage(("prepare",), ("eval", "seed"), Baselines, "gpu"),
    "synthesize": Stage(("prepare",), ("synth", "seed"), Synthesized, "gpu"),
    "sft": Stage(("prepare", "synthesize"), ("sft", "seed"), Trained, "gpu"),
    "evaluate-sft": Stage(("prepare", "sft"), ("eval", "seed"), Evaluated, "gpu"),
    "grpo": Stage(("prepare", "sft"), ("grpo", "seed"), Trained, "gpu"),
    "evaluate-trained": Stage(("prepare", "grpo"), ("eval", "seed"), Evaluated, "gpu"),
    "promote": Stage(
        (
            "evaluate-base",
            "evaluate-prompted",
            "evaluate-sft",
            "evaluate-trained",
            "grpo",
            "synthesize",
        ),
        ("gate",),
        Promoted,
    ),
}


_PLACES = {"uri", "rollouts", "report"}


def stage_key(config: PipelineConfig, manifest: Manifest, name: StageName) -> str:
    """Return what a stage depends on, as a digest: its settings and what it is given."""
    stage = STAGES[name]
    values = config.model_dump(mode="json")
    settings = {part: values[part] for part in stage.settings}
    inputs = {need: manifest.stages[need].outputs for need in stage.needs}
    return storage.digest_json({"stage": name, "settings": settings, "inputs": inputs})


def reusable(config: PipelineConfig, manifest: Manifest, name: StageName) -> StageOutputs | None:
    """Return what a stage made for these settings and inputs, if it did and it is still there.

    Raises:
        StorageError: another version of the library made it.
    """
    if any(need not in manifest.stages for need in STAGES[name].needs):
        return None
    made = manifest.done(name, stage_key(config, manifest, name))
    # A record outlives what it names: a folder may have been removed to free space.
    if made is None or not all(Path(path).exists() for path in _paths(made)):
        return None
    return typed_outputs(name, made)


def typed_outputs(name: StageName, values: dict[str, Any]) -> StageOutputs:
    """Return a stage's outputs from their JSON values.

    Raises:
        StorageError: they are not of its kind.
    """
    made: StageOutputs = read_outputs(STAGES[name].makes, values, name)
    return made


def _paths(outputs: Any, key: str = "") -> Iterator[str]:
    """Yield the local files and folders that a stage's outputs name."""
    if isinstance(outputs, dict):
        for name, value in outputs.items():
            yield from _paths(value, name)
    elif isinstance(outputs, list):
        for value in outputs:
            yield from _paths(value, key)
    elif key in _PLACES and isinstance(outputs, str) and Path(outputs).is_absolute():
        yield outputs
