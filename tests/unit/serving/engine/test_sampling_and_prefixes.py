"""Pure parts of the engine: filters, draws, prefixes, detokenizing, and what requests may say."""

import math

import pytest
import torch

from vf_pipeline.serving.engine.prefix_cache import PrefixCache, shared_prefixes
from vf_pipeline.serving.engine.requests import SamplingParams
from vf_pipeline.serving.engine.sampling import draw, uniform
from vf_pipeline.serving.http.errors import ApiError
from vf_pipeline.serving.http.requests import ChatRequest, CompletionRequest, parse
from vf_pipeline.tokens.detokenize import StopCutter, TextStream, cut_at_stop

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


def test_prefixes_are_nested_and_only_where_they_pay() -> None:
    system = tuple(range(10))
    shots_a, shots_b = tuple(range(100, 120)), tuple(range(200, 220))
    prompts = [(*system, *shots_a, 1, 5), (*system, *shots_a, 2, 5), (*system, *shots_b, 3, 5)]
    assert shared_prefixes(prompts, worth=1) == [system, (*system, *shots_a)]
    assert shared_prefixes(prompts[2:], [(*system, *shots_b, 4)], worth=1) == [(*system, *shots_b)]
    assert shared_prefixes([(1, 2, 3, 4), (1, 2, 3, 5)]) == []
    assert shared_prefixes([system]) == []


def test_equal_prompts_share_all_but_their_last_token() -> None:
    prompt = tuple(range(20))
    assert shared_prefixes([prompt, prompt], worth=1) == [prompt[:-1]]
    assert shared_prefixes([prompt, (*prompt, 7)], worth=1) == [prompt[:-1]]


@pytest.mark.parametrize(("prompts", "listed"), [(7, 0), (8, 0), (9, 1), (10, 1)])
def test_a_prefix_must_save_more_than_it_costs(prompts: int, listed: int) -> None:
    prefix = tuple(range(8))
    waiting = [(*prefix, 100 + i) for i in range(prompts - 1)]
    assert len(shared_prefixes(waiting, [(*prefix, 99)])) == listed, (
        "8 tokens for all prompts but one"
    )


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


def test_text_waits_for_whole_characters() -> None:
    data = "aé€".encode()

    def decode(ids: "list[int] | tuple[int, ...]") -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    stream = TextStream(decode)
    assert [stream.push(byte) for byte in data] == ["a", "", "é", "", "", "€"]
    assert (stream.push(0xC3), stream.finish()) == ("", "\ufffd")


def test_stop_strings_are_cut_and_held_back() -> None:
    assert cut_at_stop("one two", ["two", "ne"]) == "o"
    assert cut_at_stop("one", ["x", ""]) is None
    cutter = StopCutter(["END"])
    assert [cutter.push(t) for t in ("ab", "cE", "N", "x", "EN", "D", "more")] == [
        *("ab", "c", "", "ENx"),
        *("", "", ""),
    ]
    assert cutter.stopped
    cutter = StopCutter(["END"])
    assert (cutter.push("aEN"), cutter.finish()) == ("a", "EN")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "presence_penalty": 0.5}, "not supported"),
        ({"prompt": "a", "topk": 5}, "top_k"),
        ({"prompt": {}}, "prompt"),
        ({}, "prompt"),
        ([], "JSON object"),
    ],
)
def test_wrong_arguments_are_named(body: object, said: str) -> None:
    with pytest.raises(ApiError, match=said) as caught:
        parse(CompletionRequest, body)
    assert caught.value.status == 400


def test_neutral_and_null_arguments_are_taken() -> None:
    body = {"prompt": [1, 2], "presence_penalty": 0.0, "best_of": 3, "n": 3, "stop": None}
    asked = parse(CompletionRequest, {**body, "user": "x", "top_k": -1})
    assert asked.prompts == [[1, 2]]
    assert asked.sampling(4).top_k == 0
    chat = parse(ChatRequest, {"messages": [{"role": "user", "content": "a"}], "stop": "x"})
    assert chat.stops == ("x",)
    with pytest.raises(ApiError, match="messages"):
        parse(ChatRequest, {"messages": []})
