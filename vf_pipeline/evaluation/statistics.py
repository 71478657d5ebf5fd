"""Estimates with their uncertainty: means, paired differences, pass@k.

Sources: Miller, "Adding Error Bars to Evals" (arXiv 2411.00640), equations 1, 4 and 7, for standard
errors; Wilson (1927) for means near 0 and 1; Agresti and Min (Statistics in Medicine, 2005) for
paired proportions that hardly vary; Chen et al. (arXiv 2107.03374), equation 1, for pass@k.
Deliberately lacks scipy: one quantile function is all that is needed of it.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist

from vf_pipeline.types import Interval, Rollout, Score

CONFIDENCE = 0.95
_UPPER = (1 + CONFIDENCE) / 2
# Inside this band the t interval of a share covers as it promises; outside it falls short.
_BAND = (0.2, 0.8)
_POWER = 0.8
# From here on the normal quantile, corrected once for the degrees of freedom, is the closer one.
_MANY_DF = 1e5


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the mean of ``values`` with its standard error and 95 % interval.

    Student's t with (number of clusters - 1) degrees of freedom. Values that all lie in [0, 1] and
    whose mean lies near an end get Wilson's interval on the effective sample size instead: the t
    interval covers far too rarely there, and has no width at all when every value is the same.

    Args:
        values: one number for each observation.
        clusters: names what each observation belongs to (several plays of one example, say);
            None when all are independent.

    Returns:
        The estimate; ``n`` counts the clusters. What the data cannot tell is NaN: everything of no
        value at all, and the error and bounds of a single value outside [0, 1].
    """
    numbers = [float(value) for value in values]
    if not numbers:
        return Interval(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.fsum(numbers) / len(numbers)
    count, error = _clustered_error(numbers, mean, clusters)
    quantile = t_quantile(_UPPER, count - 1 if count > 1 else math.inf)
    bounded = all(0.0 <= value <= 1.0 for value in numbers)
    if bounded and (count == 1 or not _BAND[0] <= mean <= _BAND[1]):
        low, high = _wilson(mean, _effective_size(mean, error, count, len(numbers)), quantile)
    else:
        low, high = mean - quantile * error, mean + quantile * error
    if bounded:
        low, high = max(low, 0.0), min(high, 1.0)
    return Interval(mean, error, low, high, count)


def paired_difference(
    before: Mapping[Hashable, float] | Mapping[str, float],
    after: Mapping[Hashable, float] | Mapping[str, float],
) -> Interval:
    """Return the mean of ``after - before`` over the keys both hold, with its 95 % interval.

    Pairing removes the spread among examples from the error. Student's t, except where values lie
    in [0, 1] and their differences hardly vary or lie near an end: Agresti and Min's interval,
    which adds half a pair to each of the four outcomes, does not claim certainty there.
    """
    keys = [key for key in before if key in after]
    pairs = [(float(before[key]), float(after[key])) for key in keys]  # type: ignore[index]
    differences = [b - a for a, b in pairs]
    plain = _t_interval(differences)
    bounded = all(0.0 <= value <= 1.0 for pair in pairs for value in pair)
    # On the scale of (1 + difference) / 2, this is the band of mean_interval.
    near_end = abs(plain.mean) > _BAND[1] - _BAND[0]
    if not bounded or plain.n < 2 or not (near_end or plain.se == 0.0):
        return plain
    # Half a pair in each of the four outcomes: two pairs in all, of which those that differ add 1/2
    # + 1/2 to the squares and cancel out in the sum.
    size = plain.n + 2
    total = math.fsum(differences)
    squares = math.fsum(value * value for value in differences) + 1.0
    error = math.sqrt(max(squares - total * total / size, 0.0)) / size
    reach = t_quantile(_UPPER, plain.n - 1) * error
    low, high = max(total / size - reach, -1.0), min(total / size + reach, 1.0)
    return Interval(plain.mean, plain.se, min(low, plain.mean), max(high, plain.mean), plain.n)


def example_means(pairs: Iterable[tuple[Rollout, Score]]) -> dict[str, float]:
    """Return each example's mean reward, by its digest; failed and unscored plays are left out."""
    return grouped_means(
        (rollout.example_digest, score.reward)
        for rollout, score in pairs
        if rollout.error is None and score.reward is not None
    )


def grouped_means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean of the values that share a name."""
    groups: dict[str, list[float]] = {}
    for name, value in values:
        groups.setdefault(name, []).append(value)
    # fsum is exact whatever the order, so that the order of completion changes no digit.
    return {name: math.fsum(group) / len(group) for name, group in groups.items()}


def pass_at_k(plays: int, passed: int, k: int) -> float:
    """Return the unbiased chance that at least one of ``k`` plays passes; NaN when plays < k."""
    if plays < k:
        return math.nan
    return 1.0 - math.comb(plays - passed, k) / math.comb(plays, k)


def detectable(error: float) -> float:
    """Return the smallest true difference that 80 % of such comparisons would have found."""
    normal = NormalDist()
    return (normal.inv_cdf(_UPPER) + normal.inv_cdf(_POWER)) * error


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Return the quantile of Student's t distribution, by bisection on its distribution function.

    Args:
        p: probability, inside (0, 1).
        df: degrees of freedom, above 0; infinity gives the normal quantile.
    """
    if not 0.0 < p < 1.0 or not df > 0.0:
        raise ValueError(f"t_quantile needs 0 < p < 1 and df > 0, got {p} and {df}")
    if df > _MANY_DF:
        z = NormalDist().inv_cdf(p)
        return z + (z**3 + z) / (4 * df)
    if p < 0.5:
        # By symmetry: the tail is computed with all its digits for t >= 0 alone.
        return -t_quantile(1.0 - p, df)
    low, high = 0.0, 1.0
    while _t_upper_tail(high, df) > 1.0 - p:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        # Two neighbouring floats: there is nothing between them to go on with.
        if middle in (low, high):
            break
        if _t_upper_tail(middle, df) > 1.0 - p:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _t_interval(values: Sequence[float]) -> Interval:
    if not values:
        return Interval(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.fsum(values) / len(values)
    count, error = _clustered_error(values, mean, None)
    reach = t_quantile(_UPPER, count - 1) * error if count > 1 else math.nan
    return Interval(mean, error, mean - reach, mean + reach, count)


def _clustered_error(
    values: Sequence[float], mean: float, clusters: Sequence[Hashable] | None
) -> tuple[int, float]:
    """Return the number of clusters and the standard error; NaN for a single cluster."""
    if clusters is None:
        sums = [value - mean for value in values]
    else:
        groups: dict[Hashable, list[float]] = {}
        for value, name in zip(values, clusters, strict=True):
            groups.setdefault(name, []).append(value - mean)
        sums = [math.fsum(group) for group in groups.values()]
    count = len(sums)
    if count < 2:
        return count, math.nan
    squares = math.fsum(value * value for value in sums)
    return count, math.sqrt(squares * count / (count - 1)) / len(values)


def _effective_size(mean: float, error: float, count: int, observations: int) -> float:
    """Return how many independent 0/1 draws would have this standard error.

    At least the number of clusters: values inside [0, 1] never vary more than 0/1 draws do. At
    most the number of observations.
    """
    if not error > 0.0:
        return float(count)
    return min(max(mean * (1.0 - mean) / error**2, float(count)), float(observations))


def _wilson(share: float, size: float, quantile: float) -> tuple[float, float]:
    square = quantile * quantile
    center = (share + square / (2 * size)) / (1 + square / size)
    reach = math.sqrt(share * (1 - share) / size + square / (4 * size * size))
    reach *= quantile / (1 + square / size)
    # At shares of 0 and 1 an end is the share itself; rounding may put it on the wrong side.
    return min(center - reach, share), max(center + reach, share)


def _t_upper_tail(t: float, df: float) -> float:
    """Return P(T > t) for t >= 0: half the regularized incomplete beta function."""
    return 0.5 * _incomplete_beta(df / 2.0, 0.5, df / (df + t * t), t * t / (df + t * t))


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularized I_x(a, b); ``rest`` is 1 - x, given apart to keep its digits."""
    if rest <= 0.0:
        return 1.0
    if x <= 0.0:
        return 0.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    # On this side of the mean the fraction converges fast; on the other one, the mirrored one does.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, rest) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of I_x(a, b) (DLMF 8.17.22), by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
