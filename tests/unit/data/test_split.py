from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_pipeline.data import split_examples
from vf_pipeline.environments.rows import content_digest
from vf_pipeline.errors import ConfigError
from vf_pipeline.types import Example


def example(i, text=None, task="default"):
    text = f"question {i}" if text is None else text
    return Example(i, text, "a", task, {}, content_digest(text, "a", task, {}))


TEN = [example(i) for i in range(10)]

texts = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=30)
tasks = st.sampled_from(["x", "y", "z"])


def test_parts_have_their_sizes_and_share_nothing():
    parts = split_examples(TEN, {"eval": 3, "synth": 0, "train": 6}, seed=0)
    assert {name: len(part) for name, part in parts.items()} == {"eval": 3, "synth": 0, "train": 6}
    ids = [e.example_id for part in parts.values() for e in part]
    assert len(ids) == len(set(ids)) == 9


def test_seeds_give_different_splits():
    splits = {
        tuple(e.example_id for e in split_examples(TEN, {"eval": 5}, seed)["eval"])
        for seed in range(20)
    }
    assert len(splits) > 15


def test_equal_contents_count_once_and_the_first_one_stays():
    twice = [example(4, "same"), example(2, "same"), example(3, "other")]
    (part,) = split_examples(twice, {"all": 2}, seed=1).values()
    assert sorted(e.example_id for e in part) == [2, 3]
    with pytest.raises(ConfigError, match=r"need 3 different examples .*the dataset has 2"):
        split_examples(twice, {"all": 3}, seed=1)


def test_contents_count_where_no_digest_is_given():
    bare = [Example(i, text, "a") for i, text in enumerate(["p", "q", "p"])]
    (part,) = split_examples(bare, {"all": 2}, seed=0).values()
    assert {e.prompt for e in part} == {"p", "q"}


def test_negative_sizes_are_refused():
    with pytest.raises(ConfigError, match="'eval' has -1"):
        split_examples(TEN, {"eval": -1}, seed=0)


def test_every_part_has_the_mixture_of_tasks():
    mixed = [example(i, task="often" if i % 4 else "seldom") for i in range(400)]
    parts = split_examples(mixed, {"eval": 40, "train": 200}, seed=7)
    for name, seldom in {"eval": 10, "train": 50}.items():
        assert abs(Counter(e.task for e in parts[name])["seldom"] - seldom) <= 1
    for start in range(0, 200, 8):
        stretch = Counter(e.task for e in parts["train"][start : start + 8])
        assert 1 <= stretch["seldom"] <= 3


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), tasks), max_size=30), st.data())
def test_a_split_is_disjoint_and_stable_under_permutation(contents, data):
    examples = [example(i, text, task) for i, (text, task) in enumerate(contents)]
    different = len({e.digest for e in examples})
    first = data.draw(st.integers(0, different))
    sizes = {"a": first, "b": data.draw(st.integers(0, different - first))}
    seed = data.draw(st.integers(0, 5))
    parts = split_examples(examples, sizes, seed)
    assert {name: len(part) for name, part in parts.items()} == sizes
    digests = [e.digest for part in parts.values() for e in part]
    assert len(digests) == len(set(digests))
    assert split_examples(data.draw(st.permutations(examples)), sizes, seed) == parts
