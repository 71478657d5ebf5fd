"""The chain as a graph: its stages, what each needs and depends on, where it belongs.

Deliberately knows nothing of Prefect, so that a plan and a finished run need no server.
"""

from dataclasses import dataclass
from typing import Any, Literal

from tasks.run import Run
from vf_pipeline import storage

StageName = Literal[
    "prepare",
    "evaluate-base",
    "synthesize",
    "sft",
    "evaluate-sft",
    "grpo",
    "evaluate-trained",
    "promote",
]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's inputs (other stages), the settings that it depends on, and its work pool."""

    needs: tuple[StageName, ...]
    settings: tuple[str, ...]
    pool: Literal["cpu", "gpu"] = "cpu"


GRAPH: dict[StageName, Stage] = {
    "prepare": Stage((), ("environment", "model", "data", "seed")),
    "evaluate-base": Stage(("prepare",), ("eval", "seed"), "gpu"),
    "synthesize": Stage(("prepare",), ("synth", "seed"), "gpu"),
    "sft": Stage(("prepare", "synthesize"), ("sft", "seed"), "gpu"),
    "evaluate-sft": Stage(("prepare", "sft"), ("eval", "seed"), "gpu"),
    "grpo": Stage(("prepare", "sft"), ("grpo", "seed"), "gpu"),
    "evaluate-trained": Stage(("prepare", "grpo"), ("eval", "seed"), "gpu"),
    "promote": Stage(
        ("evaluate-base", "evaluate-sft", "evaluate-trained", "grpo", "synthesize"), ("gate",)
    ),
}


def stage_key(run: Run, name: StageName) -> str:
    """Return what a stage depends on, as a digest: its settings and what it is given."""
    stage = GRAPH[name]
    config = run.config.model_dump(mode="json")
    settings = {part: config[part] for part in stage.settings}
    inputs = {need: run.manifest.stages[need].outputs for need in stage.needs}
    return storage.digest_json({"stage": name, "settings": settings, "inputs": inputs})


def reusable(run: Run, name: StageName) -> dict[str, Any] | None:
    """Return what a stage made before, if it is done for these settings and inputs."""
    if any(need not in run.manifest.stages for need in GRAPH[name].needs):
        return None
    return run.manifest.done(name, stage_key(run, name))
