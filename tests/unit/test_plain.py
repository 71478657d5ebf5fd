"""Values as plain JSON, whatever hands them over."""

import json
import math
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageToolCall

from vf_pipeline.plain import named_if_unknown, null_if_unknown, plain, whole_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_values_stay_as_they_are(value: Any) -> None:
    assert plain(value) == value


def test_foreign_values_become_pythons_own() -> None:
    call = ChatCompletionMessageToolCall.model_validate(
        {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    )
    value = MappingProxyType({1: (np.float32(0.5), np.int64(3)), "a": np.array([1, 2]), "c": call})
    assert plain(value) == {
        "1": [0.5, 3],
        "a": [1, 2],
        "c": {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    }


def test_what_is_no_json_is_the_callers_choice() -> None:
    odd = object()
    assert plain([odd]) == [odd]
    assert plain([odd], other=lambda _: "odd") == ["odd"]


def test_numbers_that_json_lacks() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5]
    assert plain(values, number=null_if_unknown) == [None, None, None, 1.5]
    named = plain(values, number=named_if_unknown)
    assert named == ["NaN", "Infinity", "-Infinity", 1.5]
    assert [float(value) for value in named[1:]] == values[1:]


@given(st.text(st.characters(exclude_categories=())))
def test_whole_text_can_always_be_sent(text: str) -> None:
    sent = plain({"content": text}, text=whole_text)
    json.dumps(sent, ensure_ascii=False).encode()
    assert whole_text(sent["content"]) == sent["content"]
