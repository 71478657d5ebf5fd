"""What a chain has gained: over the best that prompting can do, over the plain base, by stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vf_pipeline.evaluation.compare import Comparison, compare
from vf_pipeline.types import ScoredRollout


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured model: how it was prompted or trained, and its rollouts with their scores."""

    label: str
    pairs: Sequence[ScoredRollout]

    @property
    def truncated(self) -> float:
        """Share of the answers that a token limit cut; NaN where there is none."""
        if not self.pairs:
            return math.nan
        return sum(rollout.truncated for rollout, _ in self.pairs) / len(self.pairs)


@dataclass(frozen=True, slots=True)
class Gains:
    """The trained model against every prompting of its base, and what each training stage added.

    ``over`` are the comparisons with ``bases``, in their order: the plain base is the first one.
    """

    bases: tuple[Measured, ...]
    warm: Measured
    trained: Measured
    over: tuple[Comparison, ...]
    by_sft: Comparison
    by_grpo: Comparison

    @property
    def best(self) -> int:
        """Which prompting of the base has the highest mean reward; the first of equal ones.

        It is chosen on the examples that it is then compared on. That favours the baseline: the
        highest of several noisy means is on average above its own true mean, so that the gain over
        it is understated rather than overstated, and more so the more promptings are tried.
        """
        means = [comparison.before.mean for comparison in self.over]
        # What has no mean, because nothing was scored on both sides, is not the best.
        return max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])

    @property
    def over_best(self) -> Comparison:
        """The gain that counts: over the best prompted base."""
        return self.over[self.best]

    @property
    def over_plain(self) -> Comparison:
        """The gain over the base, prompted as the trained model is."""
        return self.over[0]


def measure_gains(bases: Sequence[Measured], warm: Measured, trained: Measured) -> Gains:
    """Compare a trained model with its base, however prompted, and with its warm start.

    All comparisons are told in points, or none: where one reward lies outside [0, 1], none is.

    Args:
        bases: the promptings of the base, the plain one first.
        warm: the model after SFT.
        trained: the model after GRPO.
    """
    over = [compare(base.pairs, trained.pairs) for base in bases]
    by_sft, by_grpo = compare(bases[0].pairs, warm.pairs), compare(warm.pairs, trained.pairs)
    bounded = all(comparison.bounded for comparison in (*over, by_sft, by_grpo))
    return Gains(
        tuple(bases),
        warm,
        trained,
        tuple(replace(comparison, bounded=bounded) for comparison in over),
        replace(by_sft, bounded=bounded),
        replace(by_grpo, bounded=bounded),
    )
