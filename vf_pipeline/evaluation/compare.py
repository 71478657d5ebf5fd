"""Compare two measurements on the same examples: the paired difference, and its verdict."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vf_pipeline.evaluation.statistics import (
    detectable,
    example_means,
    mean_interval,
    paired_difference,
)
from vf_pipeline.types import Interval, ScoredRollout


@dataclass(frozen=True, slots=True)
class Change:
    """A mean before and after, and the paired difference (after - before)."""

    difference: Interval
    before: Interval
    after: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two measurements on the examples that both of them scored.

    ``unpaired`` counts the examples that only one of them scored, ``detectable`` is the smallest
    true difference that 80 % of such comparisons would have found, and ``bounded`` tells whether
    all rewards lie in [0, 1], so that differences can be told in points.
    """

    difference: Interval
    before: Interval
    after: Interval
    per_task: dict[str, Change] = field(default_factory=dict)
    unpaired: int = 0
    detectable: float = math.nan
    bounded: bool = True


def compare(before: Sequence[ScoredRollout], after: Sequence[ScoredRollout]) -> Comparison:
    """Return the difference of two lists of (rollout, score), overall and for each task.

    Both means are over the shared examples, so that they differ by the difference shown.
    """
    means = example_means(before), example_means(after)
    shared = means[0].keys() & means[1].keys()
    # A task belongs to an example; both sides name the same one.
    tasks = {rollout.example_digest: rollout.task for rollout, _ in before}
    overall = _change(means, shared)
    names = sorted({tasks[digest] for digest in shared})
    per_task = {
        name: _change(means, (digest for digest in shared if tasks[digest] == name))
        for name in names
    }
    return Comparison(
        overall.difference,
        overall.before,
        overall.after,
        per_task,
        unpaired=len(means[0].keys() ^ means[1].keys()),
        detectable=detectable(overall.difference.se),
        bounded=all(0.0 <= value <= 1.0 for side in means for value in side.values()),
    )


def verdict(comparison: Comparison, what: str = "held-out examples", over: str = "") -> str:
    """Return the difference as one line: "+87.1 points (95 % CI 82.3 … 91.4) on 240 …".

    Args:
        comparison: what is told.
        what: what was measured on.
        over: what the gain is over, where the line shall say so.
    """
    difference = comparison.difference
    if difference.n == 0:
        return f"no {what} were scored on both sides: nothing to compare"
    text = format_difference(difference, comparison.bounded)
    text += f" over {over}" if over else ""
    text += f" on {difference.n} {what}"
    if not difference.excludes_zero:
        text += ": no difference is shown"
        if math.isfinite(comparison.detectable) and comparison.detectable > 0.0:
            smallest = _number(comparison.detectable, comparison.bounded, sign=False)
            unit = " points" if comparison.bounded else ""
            text += f" (one of {smallest}{unit} would be found four times in five)"
    return text


def format_difference(difference: Interval, bounded: bool = True) -> str:
    """Return "+4.2 points (95 % CI 1.8 … 6.6)", or plain reward where it is not bounded."""
    unit = " points" if bounded else " reward"
    mean = _number(difference.mean, bounded, sign=True)
    if math.isnan(difference.low):
        return f"{mean}{unit} (too few for an interval)"
    low, high = (_number(end, bounded, sign=False) for end in (difference.low, difference.high))
    return f"{mean}{unit} (95 % CI {low} … {high})"


def format_mean(estimate: Interval, bounded: bool = True) -> str:
    """Return a mean reward as "0.625", or with three significant digits where not bounded."""
    return f"{estimate.mean:.3f}" if bounded else _number(estimate.mean, bounded, sign=False)


def _change(means: tuple[dict[str, float], dict[str, float]], digests: Iterable[str]) -> Change:
    keys = sorted(digests)
    first, second = ({key: side[key] for key in keys} for side in means)
    return Change(
        paired_difference(first, second),
        mean_interval(list(first.values())),
        mean_interval(list(second.values())),
    )


def _number(value: float, bounded: bool, *, sign: bool) -> str:
    # Adding 0.0 makes 0.0 of -0.0, which would be shown with its sign.
    scaled = round(100 * value, 1) + 0.0 if bounded else value + 0.0
    digits = ".1f" if bounded else ".3g"
    return f"{scaled:{'+' if sign else ''}{digits}}"
