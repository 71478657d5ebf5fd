import math

import pytest

from vf_pipeline.training.groups import has_signal, is_flat
from vf_pipeline.training.trainer.advantages import compute_advantages


def test_advantage_is_the_reward_minus_the_mean() -> None:
    assert compute_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert compute_advantages([3.0, 1.0, 2.0]) == [1.0, -1.0, 0.0]


def test_group_scale_divides_by_the_unbiased_deviation() -> None:
    # mean 2, deviations 1 and -1: variance (1 + 1) / (2 - 1) = 2.
    got = compute_advantages([3.0, 1.0], "group")
    assert got == pytest.approx([1 / (math.sqrt(2) + 1e-4), -1 / (math.sqrt(2) + 1e-4)])


def test_unscored_rollouts_enter_no_mean() -> None:
    assert compute_advantages([1.0, None, 0.0]) == [0.5, None, -0.5]
    assert compute_advantages([1.0, math.nan, 0.0]) == [0.5, None, -0.5]
    assert compute_advantages([None, None]) == [None, None]


@pytest.mark.parametrize(
    ("rewards", "signal", "flat"),
    [
        ([0.0, 1.0], True, False),
        ([1.0, 1.0], False, True),
        ([1.0, 1.0 + 1e-9], False, True),
        ([1.0, None], False, False),
        ([None, None], False, False),
        ([0.2, None, 0.3], True, False),
    ],
)
def test_signal(rewards: list[float | None], signal: bool, flat: bool) -> None:
    assert has_signal(rewards) is signal
    assert is_flat(rewards) is flat
