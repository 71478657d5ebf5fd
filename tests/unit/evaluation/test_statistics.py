"""Estimates against scipy, brute force and simulation."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.stats

from vf_pipeline.evaluation.statistics import (
    detectable,
    example_means,
    mean_interval,
    paired_difference,
    pass_at_k,
    t_quantile,
)
from vf_pipeline.types import Failure, Rollout, Score


@pytest.mark.parametrize("p", [0.025, 0.4, 0.5, 0.6, 0.9, 0.975, 0.9995])
@pytest.mark.parametrize("df", [1, 2, 2.5, 7, 30, 239, 5000, 99_999, 100_001, 1e9])
def test_t_quantile_is_that_of_scipy(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-6, abs=1e-9)


def test_t_quantile_of_infinite_df_is_normal_and_wrong_arguments_are_refused() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(scipy.stats.norm.ppf(0.975), rel=1e-12)
    for p, df in ((0.0, 3), (1.0, 3), (0.5, 0), (0.5, math.nan)):
        with pytest.raises(ValueError, match="t_quantile"):
            t_quantile(p, df)


def test_mean_interval_inside_the_band_is_students() -> None:
    values = [0.1, 0.5, 0.9, 0.6, 0.4, 0.3]
    found = mean_interval(values)
    error = scipy.stats.sem(values)
    low, high = scipy.stats.t.interval(0.95, 5, loc=np.mean(values), scale=error)
    assert (found.mean, found.se) == pytest.approx((np.mean(values), error))
    assert (found.low, found.high, found.n) == (pytest.approx(low), pytest.approx(high), 6)


def test_mean_interval_of_unbounded_values_is_students_everywhere() -> None:
    values = [10.0, 12.0, 11.0, 15.0]
    found = mean_interval(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=12.0, scale=scipy.stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_mean_interval_is_wilsons_where_every_value_is_the_same(share: float) -> None:
    found = mean_interval([share] * 100)
    # Wilson at 0 of n: the upper end is q² / (n + q²), here with the t quantile of 99.
    q = scipy.stats.t.ppf(0.975, 99)
    reach = q * q / (100 + q * q)
    expected = (0.0, reach) if share == 0.0 else (1.0 - reach, 1.0)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.mean == share


def test_mean_interval_near_an_end_is_wilsons_on_the_observations() -> None:
    found = mean_interval([1.0] * 45 + [0.0] * 5)
    q = scipy.stats.t.ppf(0.975, 49)
    center = (0.9 + q * q / 100) / (1 + q * q / 50)
    reach = q * math.sqrt(0.9 * 0.1 / 50 + q * q / 4 / 2500) / (1 + q * q / 50)
    assert (found.low, found.high) == pytest.approx((center - reach, center + reach))


def test_mean_interval_stays_in_its_range() -> None:
    found = mean_interval([0.0, 1.0])
    assert (found.low, found.high) == (0.0, 1.0)


def test_mean_interval_of_nothing_and_of_one() -> None:
    assert mean_interval([]).n == 0
    assert math.isnan(mean_interval([]).mean)
    one = mean_interval([1.0])
    assert (one.mean, one.n) == (1.0, 1)
    assert math.isnan(one.se)
    assert 0.0 < one.low < 0.5
    assert one.high == 1.0
    assert math.isnan(mean_interval([7.0]).low)


def test_clusters_of_one_are_no_clusters_and_copies_add_nothing() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    plain = mean_interval(values)
    alone = mean_interval(values, list(range(7)))
    assert alone.se == pytest.approx(plain.se)
    copied = mean_interval(values * 4, list(range(7)) * 4)
    assert (copied.se, copied.n) == (pytest.approx(plain.se), 7)
    assert mean_interval(values * 4).se < 0.6 * plain.se


def test_clustered_error_by_hand() -> None:
    # mean 0.5; sums of deviations +1, -1, 0; SE² = (1 + 1 + 0) / 6² * 3/2
    found = mean_interval([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b", "c", "c"])
    assert found.se == pytest.approx(math.sqrt(2 / 36 * 1.5))


@pytest.mark.parametrize("plays", [1, 3])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.98])
def test_coverage_of_the_mean(plays: int, share: float) -> None:
    """50 examples whose own chances are beta distributed with an intraclass correlation of 0.5."""
    rng = np.random.default_rng(7)
    trials = 1500
    chances = rng.beta(share, 1 - share, (trials, 50))
    means = rng.binomial(plays, chances) / plays
    found = [mean_interval(row) for row in means.tolist()]
    covered = sum(interval.low <= share <= interval.high for interval in found) / trials
    # Exact 95 % is not to be had for counts: with one play, the binomial law itself makes it 0.922
    # at 0.98, where the t interval covers 0.63.
    assert 0.905 <= covered <= 0.995


def test_paired_difference_is_the_paired_t_interval() -> None:
    before = {"a": 0.2, "b": 0.5, "c": 0.4, "d": 0.9, "only before": 0.0}
    after = {"d": 0.8, "c": 0.9, "b": 0.5, "a": 0.6, "only after": 1.0}
    found = paired_difference(before, after)
    test = scipy.stats.ttest_rel([0.6, 0.5, 0.9, 0.8], [0.2, 0.5, 0.4, 0.9])
    expected = test.confidence_interval(0.95)
    assert found.n == 4
    assert found.mean == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_paired_difference_of_what_never_varies_claims_no_certainty() -> None:
    none = dict.fromkeys(range(100), 0.0)
    full = dict.fromkeys(range(100), 1.0)
    same = paired_difference(none, none)
    assert (same.mean, same.se) == (0.0, 0.0)
    # Agresti and Min: Σd² + 1 = 1 over (n + 2)² = 102²
    reach = scipy.stats.t.ppf(0.975, 99) / 102
    assert (same.low, same.high) == pytest.approx((-reach, reach))
    gain = paired_difference(none, full)
    assert (gain.mean, gain.high) == (1.0, 1.0)
    assert 0.9 < gain.low < 0.96
    assert gain.excludes_zero


def test_coverage_of_the_paired_difference() -> None:
    rng = np.random.default_rng(3)
    for first, second in ((0.0, 0.92), (0.4, 0.6), (0.05, 0.05)):
        covered = 0
        for _ in range(400):
            a = dict(enumerate((rng.random(100) < first).astype(float).tolist()))
            b = dict(enumerate((rng.random(100) < second).astype(float).tolist()))
            found = paired_difference(a, b)
            covered += found.low <= second - first <= found.high
        assert 0.92 <= covered / 400 <= 0.995


def test_paired_difference_without_shared_keys() -> None:
    found = paired_difference({"a": 1.0}, {"b": 1.0})
    assert found.n == 0
    assert not found.excludes_zero


def test_pass_at_k_is_the_share_of_subsets() -> None:
    for plays in range(1, 7):
        for passed in range(plays + 1):
            outcomes = [1] * passed + [0] * (plays - passed)
            for k in range(1, plays + 1):
                subsets = list(combinations(outcomes, k))
                expected = sum(any(subset) for subset in subsets) / len(subsets)
                assert pass_at_k(plays, passed, k) == pytest.approx(expected)
    assert math.isnan(pass_at_k(2, 2, 3))


def test_detectable_is_the_sum_of_both_quantiles() -> None:
    assert detectable(0.01) == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-6)


def test_example_means_leaves_failed_and_unscored_out() -> None:
    def pair(digest: str, index: int, reward: float | None, failed: bool = False):
        error = Failure("provider", "ProviderError", "down") if failed else None
        rollout = Rollout(0, index, digest, "t", "q", "a", "g", "stop", error=error)
        return rollout, Score(rollout.key, reward)

    pairs = [pair("x", 0, 1.0), pair("x", 1, 0.0), pair("x", 2, 0.0, True), pair("y", 0, None)]
    assert example_means(pairs) == {"x": 0.5}
