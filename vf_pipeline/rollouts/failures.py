"""What became of a rollout: a reward, or a failure with the boundary that was crossed."""

from collections.abc import Sequence

from vf_pipeline.errors import (
    EnvironmentFault,
    OverlongPromptError,
    ProviderError,
    RubricError,
    VfError,
)
from vf_pipeline.types import Failure, ScoredRollout

_ERRORS: dict[str, type[VfError]] = {
    "provider": ProviderError,
    "environment": EnvironmentFault,
    "rubric": RubricError,
}


def failure_of(played: ScoredRollout) -> Failure | None:
    """Return why a rollout has no reward, or None where it has one."""
    rollout, score = played
    if rollout.error is not None:
        return rollout.error
    if score.reward is None:
        reasons = [f"{name}: {text}" for name, text in score.outcomes.items() if text != "ok"]
        return Failure("rubric", "Unscored", "; ".join(reasons) or "the rubric gave no reward")
    return None


def error_for(failures: Sequence[Failure], message: str, hint: str) -> VfError:
    """Return the error of the boundary that most of the failures crossed, with their cause.

    Where every failure is a prompt that does not fit, it is an ``OverlongPromptError``.
    """
    boundaries = [failure.boundary for failure in failures]
    # Sorted first: of equally many, max() keeps the first, and a set's order changes from process
    # to process.
    boundary = max(sorted(set(boundaries)), key=boundaries.count)
    causes = [f.message or f.kind for f in failures if f.boundary == boundary]
    cause = max(sorted(set(causes)), key=causes.count)
    if {failure.kind for failure in failures} == {OverlongPromptError.__name__}:
        return OverlongPromptError(f"{message}; most often: {cause}", hint)
    return _ERRORS[boundary](f"{message}; most often: {cause}", hint)
