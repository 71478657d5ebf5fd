import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_pipeline.data import read_examples, write_examples
from vf_pipeline.environments.rows import content_digest
from vf_pipeline.errors import ConfigError, StorageError
from vf_pipeline.types import Example

MIXED = [
    Example(0, [{"role": "user", "content": "a"}], "1", "x", {"a": 1}, "d0"),
    Example(5, "plain text", "", "y", {"b": {"c": [1, "two", None]}}, "d1"),
    Example(
        2,
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "ü\u2028\x00"}]},
        ],
        "zwölf",
        "x",
        {"a": "a string now"},
        "d2",
    ),
]


def test_examples_of_any_shape_survive(tmp_path):
    path = tmp_path / "deep" / "mixed.parquet"
    ref = write_examples(path, MIXED)
    assert read_examples(path) == MIXED
    assert (ref.uri, ref.rows) == (str(path), 3)


def test_no_example_is_a_file_too(tmp_path):
    ref = write_examples(tmp_path / "none.parquet", [])
    assert ref.rows == 0
    assert read_examples(ref.uri) == []


def test_the_digest_is_of_the_examples_in_their_order(tmp_path):
    first = write_examples(tmp_path / "a.parquet", MIXED)
    assert write_examples(tmp_path / "b.parquet", MIXED).digest == first.digest
    assert write_examples(tmp_path / "c.parquet", MIXED[::-1]).digest != first.digest


def test_a_missing_digest_is_filled_in(tmp_path):
    write_examples(tmp_path / "a.parquet", [Example(0, "p", "a")])
    (read,) = read_examples(tmp_path / "a.parquet")
    assert read.digest == content_digest("p", "a", "default", {})


def test_a_store_in_memory_works_as_well():
    write_examples("memory://examples/mixed.parquet", MIXED)
    assert read_examples("memory://examples/mixed.parquet") == MIXED


def test_what_cannot_be_written_names_the_example(tmp_path):
    for bad in (Example(7, "p", info={"x": {1, 2}}), Example(7, "p", answer="\ud800")):
        with pytest.raises(ConfigError, match="example 7 cannot be written"):
            write_examples(tmp_path / "bad.parquet", [bad])
    assert not (tmp_path / "bad.parquet").exists()


def test_damaged_and_foreign_files_are_explained(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(StorageError, match="does not exist"):
        read_examples(tmp_path / "none.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(StorageError, match="holds no examples"):
        read_examples(tmp_path / "torn.parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(StorageError, match="holds no examples"):
        read_examples(tmp_path / "other.parquet")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text()}),
    max_size=3,
)
examples = st.builds(
    Example,
    st.integers(0, 10**6),
    st.text() | messages,
    st.text(),
    st.text(min_size=1),
    st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    st.text("0123456789abcdef", min_size=16, max_size=16),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(examples, max_size=4))
def test_what_is_written_is_read_again(values):
    write_examples("memory://examples/any.parquet", values)
    assert read_examples("memory://examples/any.parquet") == values
