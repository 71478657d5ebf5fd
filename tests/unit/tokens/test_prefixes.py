"""Shared prefixes: by hand, and against an oracle that tries every prefix."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_pipeline.tokens.prefixes import Ids, common_prefix_length, shared_prefixes


def test_the_common_prefix_by_hand() -> None:
    assert common_prefix_length([(1, 2, 3), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2, 3)]) == 3
    assert common_prefix_length([(1,), (2,)]) == 0
    assert common_prefix_length([[1, 5], (1, 5, 2)]) == 2, "lists and tuples alike"


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


TOKENS = st.lists(st.integers(0, 1), max_size=7).map(tuple)
PROMPTS = st.lists(TOKENS.filter(len), max_size=6)


@given(sequences=st.lists(TOKENS, min_size=1, max_size=6))
def test_the_common_prefix_is_the_longest_that_all_begin_with(sequences: list[Ids]) -> None:
    first = sequences[0]
    longest = max(n for n in range(len(first) + 1) if all(s[:n] == first[:n] for s in sequences))
    assert common_prefix_length(sequences) == longest


def oracle(waiting: list[Ids], recent: list[Ids], worth: int, minimum: int) -> list[Ids]:
    """Try every prefix of every waiting prompt, by the words of shared_prefixes' docstring."""

    def through(prefix: Ids) -> tuple[list[int], list[int]]:
        size = len(prefix)
        begins = [i for i, p in enumerate(waiting) if p[:size] == prefix and len(p) > size]
        return begins, [i for i, p in enumerate(recent) if p[:size] == prefix]

    every = {prompt[:size] for prompt in waiting for size in range(len(prompt))}
    listed: list[Ids] = []
    for prefix in sorted(every, key=len):
        here, seen = through(prefix)
        goes_on = any(through((*prefix, token)) == (here, seen) for token in (0, 1))
        if goes_on or len(here) + len(seen) < 2:
            continue
        before = max((len(p) for p in listed if prefix[: len(p)] == p), default=0)
        added = len(prefix) - before
        if added >= minimum and added * (len(here) + len(seen) - 1) >= worth:
            listed.append(prefix)
    return listed


@settings(max_examples=300)
@given(PROMPTS, PROMPTS, st.integers(0, 8), st.integers(1, 3))
def test_shared_prefixes_are_those_of_the_oracle(
    waiting: list[Ids], recent: list[Ids], worth: int, minimum: int
) -> None:
    found = shared_prefixes(waiting, recent, worth, minimum)
    assert [len(prefix) for prefix in found] == sorted(len(prefix) for prefix in found)
    assert sorted(found) == sorted(oracle(waiting, recent, worth, minimum))
