"""Pure parts of the engine: filters, draws, and the cache of prefixes."""

import math

import pytest
import torch

from vf_pipeline.serving.engine.prefix_cache import PrefixCache
from vf_pipeline.serving.engine.requests import SamplingParams
from vf_pipeline.serving.engine.sampling import draw, uniform

PROBS = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


def drawn(u: float, **params: float) -> tuple[int, float]:
    settings = SamplingParams(1, **params)  # type: ignore[arg-type]
    tokens, logprobs, _ = draw(PROBS.log(), [settings], [u])
    return tokens[0], math.exp(logprobs[0])


@pytest.mark.parametrize(
    ("u", "params", "token", "prob"),
    [
        (0.0, {}, 0, 0.5),
        (0.49, {}, 0, 0.5),
        (0.51, {}, 1, 0.3),
        (0.999999, {}, 3, 0.05),
        (0.99, {"temperature": 0.0}, 0, 0.5),
        # Kept 0.5 and 0.3: 0.625 and 0.375.
        (0.7, {"top_k": 2}, 1, 0.375),
        (0.9999999, {"top_k": 2}, 1, 0.375),
        # The smallest set that reaches 0.75 is the same; 0.4 needs the first alone.
        (0.7, {"top_p": 0.75}, 1, 0.375),
        (0.99, {"top_p": 0.4}, 0, 1.0),
        # Below a fifth of 0.5: only 0.05 goes; 0.15 is 3/19 of the rest.
        (0.99, {"min_p": 0.2}, 2, 0.15 / 0.95),
        # Temperature 0.5 squares: 0.25 of 0.365.
        (0.1, {"temperature": 0.5}, 0, 0.25 / 0.365),
        # top_p after top_k: of (0.625, 0.375) the first reaches 0.6.
        (0.99, {"top_k": 2, "top_p": 0.6}, 0, 1.0),
    ],
)
def test_draws_and_their_probabilities(
    u: float, params: dict[str, float], token: int, prob: float
) -> None:
    got, chance = drawn(u, **params)
    assert got == token
    assert chance == pytest.approx(prob, rel=1e-5)


def test_uniforms_depend_on_each_part_and_fill_the_unit_interval() -> None:
    base = uniform(1, 2, 3)
    assert base == uniform(1, 2, 3)
    assert len({base, uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)}) == 4
    values = [uniform(0, 0, i) for i in range(4000)]
    assert 0.0 <= min(values) < max(values) < 1.0
    assert sum(values) / 4000 == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 4000))


def test_the_prefix_cache_keeps_what_was_used_last() -> None:
    store: PrefixCache[str] = PrefixCache(budget_bytes=30, bytes_per_token=1)
    a, b = tuple(range(10)), tuple(range(20, 40))
    store.add(a, "a")
    store.add(b, "b")
    assert store.longest((*a, 1), 10) == (a, "a")
    assert store.longest((*a, 1), 9) is None
    store.add((*a, 1), "longer")
    assert store.longest((*b, 1), 20) is None
    assert store.longest((*a, 1, 2), 11) == ((*a, 1), "longer")
    store.clear()
    assert len(store) == 0
