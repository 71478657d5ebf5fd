"""Rewards of a group in, advantages out."""

import statistics
from collections.abc import Sequence
from typing import Literal

from vf_pipeline.training.groups import is_scored

# Against division by almost nothing: a group whose rewards hardly differ would get advantages as
# large as one whose rewards differ fully.
_STD_EPSILON = 1e-4


def compute_advantages(
    rewards: Sequence[float | None], scale: Literal["none", "group"] = "none"
) -> list[float | None]:
    """Return each reward minus the group's mean; unscored ones stay None and enter no mean.

    A = r - mean (Dr. GRPO, arXiv 2503.20783); with ``scale="group"``
    A = (r - mean) / (std + 1e-4), std with n - 1 in the denominator (GRPO, arXiv 2402.03300).

    Args:
        rewards: rewards of one prompt's completions; None where a rollout could not be scored.
        scale: whether to divide by the group's standard deviation.
    """
    scored = [reward for reward in rewards if is_scored(reward)]
    if not scored:
        return [None] * len(rewards)
    mean = statistics.fmean(scored)
    divisor = 1.0
    # A single scored play has no deviation; its advantage is 0 either way.
    if scale == "group" and len(scored) > 1:
        divisor = statistics.stdev(scored) + _STD_EPSILON
    return [(reward - mean) / divisor if is_scored(reward) else None for reward in rewards]
