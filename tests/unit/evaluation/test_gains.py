"""A trained model against every prompting of its base."""

import math

import pytest

from vf_pipeline.evaluation.gains import Gains, Measured, measure_gains
from vf_pipeline.types import Rollout, Score


def measured(label: str, rewards: list[float | None], cut: int = 0) -> Measured:
    """Return a model with one rollout an example; a token limit cut the first ``cut`` of them."""
    pairs = []
    for i, reward in enumerate(rewards):
        reason = "length" if i < cut else "stop"
        rollout = Rollout(i, 0, f"e{i}", "t", "q", "a", "g", reason)  # type: ignore[arg-type]
        pairs.append((rollout, Score(rollout.key, reward)))
    return Measured(label, pairs)


def gains(*bases: Measured, trained: list[float | None] | None = None) -> Gains:
    warm = measured("SFT", [1.0, 1.0, 0.0, 0.0])
    return measure_gains(bases, warm, measured("trained", trained or [1.0, 1.0, 1.0, 0.0]))


def test_the_gain_that_counts_is_over_the_best_prompting() -> None:
    plain = measured("zero-shot, 6 tokens", [0.0, 0.0, 0.0, 0.0], cut=3)
    few = measured("8-shot, 6 tokens", [1.0, 0.0, 1.0, 0.0])
    weak = measured("3-shot, 6 tokens", [0.0, 0.0, 1.0, 0.0])
    found = gains(plain, weak, few)
    assert found.bases[found.best] is few
    assert found.over_best.difference.mean == pytest.approx(0.25)
    assert found.over_plain.difference.mean == pytest.approx(0.75)
    assert found.by_sft.difference.mean == pytest.approx(0.5)
    assert found.by_grpo.difference.mean == pytest.approx(0.25)
    assert (plain.truncated, few.truncated) == (0.75, 0.0)
    assert math.isnan(measured("nothing", []).truncated)


def test_the_plain_base_may_be_the_best_and_wins_a_tie() -> None:
    plain = measured("zero-shot", [1.0, 0.0, 0.0, 0.0])
    tied, unscored = measured("3-shot", [0.0, 1.0, 0.0, 0.0]), measured("8-shot", [None] * 4)
    assert gains(plain).best == 0
    assert gains(plain, tied).best == 0
    assert gains(plain, unscored).best == 0
    assert gains(unscored, plain).best == 1


def test_one_reward_beyond_one_tells_all_of_them_plainly() -> None:
    plain = measured("zero-shot", [0.0, 0.5, 0.0, 0.0])
    deep = measured("3-shot", [-3.0, 0.0, 0.0, 0.0])
    assert gains(plain).over_best.bounded
    found = gains(plain, deep)
    assert not found.over_best.bounded
    assert not found.by_sft.bounded
    assert found.over[1].difference.mean == pytest.approx(1.5)
