"""Requests as plain JSON, and the arithmetic of pauses."""

import time
from email.utils import formatdate

import pytest
from openai import NOT_GIVEN
from openai.types.chat import ChatCompletionMessageToolCall

from vf_pipeline.inference.diagnosis import _retry_after
from vf_pipeline.inference.retries import RetryPolicy
from vf_pipeline.inference.wire import request_body, sendable


def test_a_body_holds_only_what_was_given() -> None:
    body = request_body(
        {"model": "m", "tools": None, "stop": NOT_GIVEN, "n": 1, "extra_body": {"top_k": 3, "n": 2}}
    )
    assert body == {"model": "m", "n": 2, "top_k": 3}


def test_sdk_objects_become_json() -> None:
    call = ChatCompletionMessageToolCall.model_validate(
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    )
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert sendable([message]) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        }
    ]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("plain é 😀", "plain é 😀"),
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 tail", "\ufffd tail"),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_lone_surrogates_are_replaced(text: str, sent: str) -> None:
    assert sendable({"content": text}) == {"content": sent}


def test_pauses_double_within_bounds() -> None:
    policy = RetryPolicy(backoff_s=1.0, max_backoff_s=5.0)
    for retry, longest in enumerate([1.0, 2.0, 4.0, 5.0, 5.0]):
        for _ in range(20):
            assert longest / 2 <= policy.pause_s(retry, None) <= longest
    assert policy.pause_s(0, 17.0) == 17.0


def test_retry_after_in_every_form() -> None:
    assert _retry_after({}) is None
    assert _retry_after({"retry-after": "2"}) == 2.0
    assert _retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert _retry_after({"retry-after": "soon"}) is None
    later = _retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert later is not None and 28.0 <= later <= 30.0
    assert _retry_after({"retry-after": formatdate(time.time() - 30, usegmt=True)}) == 0.0
