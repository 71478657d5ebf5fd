"""What identifies the rollouts of a run: a journal of other ones is refused when it is resumed."""

from dataclasses import asdict
from typing import Any

from vf_pipeline.runs import Run
from vf_pipeline.types import DatasetRef, ModelRef


def identity_of(run: Run, model: ModelRef, data: DatasetRef, **how: Any) -> dict[str, Any]:
    """Return what must not change between the sessions that write one journal.

    Args:
        run: the run: its environment, as it was prepared, and its seed.
        model: the weights that answer.
        data: the examples that are played.
        how: how they are played, by the name of the settings.
    """
    environment = run.config.environment.model_dump() | asdict(run.prepared.environment)
    return {
        "environment": environment,
        "model": model.digest,
        "data": data.digest,
        "seed": run.config.seed,
        **how,
    }


def measured_by(run: Run) -> dict[str, Any]:
    """Return the settings of an evaluation that its rollouts depend on."""
    return run.config.eval.model_dump(include={"rollouts_per_example", "max_tokens", "temperature"})
