from hypothesis import given, settings
from hypothesis import strategies as st

from vf_pipeline.training.trainer.batching import pack
from vf_pipeline.types import TrainSample


def row(prefix: int, suffix: int, index: int, first: int = 1) -> TrainSample:
    return TrainSample(str(index), (first, *range(2, prefix + 1)), tuple(range(suffix)))


def test_rows_of_one_prompt_share_its_prefix() -> None:
    rows = [row(4, 2, 0), row(4, 3, 1, first=9), row(4, 2, 2), row(4, 1, 3, first=9)]
    (batch,) = pack(rows, 100)
    assert len(batch.prompts) == 2
    for one, place in zip(batch.samples, batch.prompt_of, strict=True):
        assert batch.prompts[place] == one.prompt_ids
    assert batch.padded_tokens == 2 * 4 + 4 * 3


def test_the_budget_cuts() -> None:
    rows = [row(10, 5, index) for index in range(4)]
    # Two rows cost 10 + 2 * 5 = 20; the prefix is forwarded once for each part.
    batches = pack(rows, 20)
    assert [[int(one.group) for one in batch.samples] for batch in batches] == [[0, 1], [2, 3]]
    assert all(batch.padded_tokens == 20 for batch in batches)


def test_a_row_beyond_the_budget_goes_alone() -> None:
    batches = pack([row(10, 5, 0), row(100, 50, 1)], 64)
    assert sorted(len(batch.samples) for batch in batches) == [1, 1]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)), max_size=30),
    st.integers(8, 80),
)
def test_every_row_is_packed_once_within_the_budget(
    shapes: list[tuple[int, int, int]], budget: int
) -> None:
    rows = [row(p, s, index, first) for index, (p, s, first) in enumerate(shapes)]
    batches = pack(rows, budget)
    assert sorted(int(one.group) for batch in batches for one in batch.samples) == list(
        range(len(rows))
    )
    for batch in batches:
        assert batch.padded_tokens <= budget or len(batch.samples) == 1
