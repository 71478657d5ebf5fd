"""Comparisons on shared examples, and the line they are told in."""

import math

import pytest

from vf_pipeline.evaluation.compare import compare, format_difference, verdict
from vf_pipeline.types import Interval, Rollout, Score


def pair(digest: str, reward: float | None, task: str = "t", index: int = 0):
    rollout = Rollout(int(digest[1:]), index, digest, task, "q", "a", "g", "stop")
    return rollout, Score(rollout.key, reward)


def test_compare_uses_the_examples_that_both_scored() -> None:
    before = [pair("e1", 0.0), pair("e2", 1.0), pair("e3", 0.0), pair("e4", None)]
    after = [pair("e3", 1.0), pair("e2", 1.0), pair("e1", 0.0), pair("e4", 1.0)]
    found = compare(before, after)
    assert found.difference.mean == pytest.approx(1 / 3)
    assert (found.before.mean, found.after.mean) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (found.difference.n, found.unpaired, found.bounded) == (3, 1, True)


def test_compare_tells_tasks_apart() -> None:
    before = [pair(f"e{i}", 0.0, "ab"[i % 2]) for i in range(8)]
    after = [pair(f"e{i}", float(i % 2), "ab"[i % 2]) for i in range(8)]
    found = compare(before, after)
    assert list(found.per_task) == ["a", "b"]
    assert found.per_task["a"].difference.mean == 0.0
    assert found.per_task["b"].after.mean == 1.0


def test_order_of_completion_changes_nothing() -> None:
    before = [pair(f"e{i}", (i % 3) / 2) for i in range(20)]
    after = [pair(f"e{i}", (i % 5) / 4) for i in range(20)]
    assert compare(before, after) == compare(before[::-1], after[7:] + after[:7])


def test_verdict_tells_a_clear_gain() -> None:
    before = [pair(f"e{i}", float(i < 20)) for i in range(100)]
    after = [pair(f"e{i}", float(i < 60)) for i in range(100)]
    # d̄ = 0.4, SE = sqrt(0.24 / 99), t(99) = 1.98422
    reach = 100 * 1.98422 * math.sqrt(0.24 / 99)
    low, high = 40 - reach, 40 + reach
    expected = f"+40.0 points (95 % CI {low:.1f} … {high:.1f}) on 100 held-out examples"
    assert verdict(compare(before, after)) == expected


def test_verdict_says_when_nothing_is_shown() -> None:
    before = [pair(f"e{i}", float(i % 2)) for i in range(50)]
    after = [pair(f"e{i}", float(i % 3 == 0)) for i in range(50)]
    text = verdict(compare(before, after))
    assert "no difference is shown" in text
    assert "would be found four times in five" in text


def test_verdict_of_nothing_in_common() -> None:
    assert "nothing to compare" in verdict(compare([pair("e1", 1.0)], [pair("e2", 1.0)]))


def test_rewards_beyond_one_are_not_told_in_points() -> None:
    before = [pair(f"e{i}", 3.0 + i % 2) for i in range(10)]
    after = [pair(f"e{i}", 5.0 + i % 3) for i in range(10)]
    text = verdict(compare(before, after))
    assert "reward" in text
    assert "points" not in text


def test_difference_without_an_interval_and_without_minus_zero() -> None:
    assert "too few" in format_difference(Interval(0.5, math.nan, math.nan, math.nan, 1))
    text = format_difference(Interval(-0.0001, 0.001, -0.0004, 0.0002, 9))
    assert text == "+0.0 points (95 % CI 0.0 … 0.0)"
