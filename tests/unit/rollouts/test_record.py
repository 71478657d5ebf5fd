"""State → Rollout → JSON → Rollout."""

import json
import math
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageToolCall

from vf_pipeline.errors import StorageError
from vf_pipeline.rollouts.record import (
    failed_rollout,
    rollout_from_dict,
    rollout_from_state,
    rollout_to_dict,
    score_from_dict,
    score_to_dict,
    to_json,
)
from vf_pipeline.types import Example, Failure, Rollout, Score, Turn, Usage

EXAMPLE = Example(4, [{"role": "user", "content": "q"}], "a", "add", {}, "d1")


def response(
    finish: str = "stop", content: str = "hi", extra: dict[str, Any] | None = None, **choice: Any
) -> ChatCompletion:
    fields = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [
            {"index": 0, "finish_reason": finish,
             "message": {"role": "assistant", "content": content}, **choice}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
        **(extra or {}),
    }  # fmt: skip
    return ChatCompletion.model_validate(fields)


TOKENS: dict[str, Any] = {"token_ids": [5, 6], "token_logprobs": [-0.5, -0.25]}


def state(*responses: Any, **more: Any) -> dict[str, Any]:
    completion = [{"role": "assistant", "content": "hi"}]
    return {"completion": completion, "responses": list(responses), **more}


def through_json(rollout: Rollout) -> Rollout:
    return rollout_from_dict(json.loads(to_json(rollout_to_dict(rollout))))


def test_a_state_becomes_a_rollout() -> None:
    first = response(extra={"prompt_token_ids": [1, 2]}, weight_version="7", **TOKENS)
    second = response("length", extra={"prompt_token_ids": [1, 2, 5, 6, 3]}, **TOKENS)
    rollout = rollout_from_state(
        EXAMPLE, 1, state(first, second, stop_reason="max_turns"), time.monotonic() - 2.0
    )
    assert rollout.turns == (
        Turn((1, 2), (5, 6), (-0.5, -0.25), "stop", "7"),
        Turn((1, 2, 5, 6, 3), (5, 6), (-0.5, -0.25), "length", ""),
    )
    assert rollout.usage == Usage(20, 4)
    assert 2.0 <= rollout.duration_s < 3.0
    assert rollout.key == "d1:4:1"
    assert (rollout.task, rollout.answer, rollout.error) == ("add", "a", None)
    assert rollout.prompt == EXAMPLE.prompt
    assert rollout.completion == [{"role": "assistant", "content": "hi"}]
    assert rollout.stop_reason == "max_turns"
    assert through_json(rollout) == rollout


@pytest.mark.parametrize(
    ("said", "finish", "kept"),
    [
        ("stop", "stop", "stop"),
        ("stop", "length", "length"),
        (None, "length", "length"),
        (None, "stop", "stop"),
        ("nonsense", "stop", "stop"),
        ("environment", "length", "environment"),
    ],
)
def test_why_it_ended(said: str | None, finish: str, kept: str) -> None:
    rollout = rollout_from_state(EXAMPLE, 0, state(response(finish), stop_reason=said), 0.0)
    assert rollout.stop_reason == kept


def test_chat_answers_carry_their_logprobs_in_another_place() -> None:
    content = [{"token": "a", "logprob": value, "top_logprobs": []} for value in (-1.0, -2.0)]
    answer = response(
        extra={"prompt_token_ids": [1]}, token_ids=[5, 6], logprobs={"content": content}
    )
    rollout = rollout_from_state(EXAMPLE, 0, state(answer), 0.0)
    assert rollout.turns == (Turn((1,), (5, 6), (-1.0, -2.0), "stop"),)


@pytest.mark.parametrize(
    "answer",
    [
        response(),
        response(extra={"prompt_token_ids": [1]}),
        response(**TOKENS),
        response(extra={"prompt_token_ids": [1]}, token_ids=[5]),
        MagicMock(),
        SimpleNamespace(),
    ],
)
def test_turns_are_kept_only_when_all_have_their_tokens(answer: Any) -> None:
    whole = response(extra={"prompt_token_ids": [1]}, **TOKENS)
    assert rollout_from_state(EXAMPLE, 0, state(whole, answer), 0.0).turns == ()


def test_messages_may_hold_anything() -> None:
    call = ChatCompletionMessageToolCall.model_validate(
        {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    )
    completion = [
        {"role": "assistant", "content": "cut \ud83d \u2028", "tool_calls": [call]},
        {"role": "tool", "content": "1", "score": np.float32(0.5), "n": np.int64(3)},
        {"role": "tool", "values": np.arange(2), "nan": math.nan, "set": {1}, 5: (1, None, True)},
    ]
    rollout = rollout_from_state(EXAMPLE, 0, {"completion": completion}, 0.0)
    assert rollout.completion == [
        {
            "role": "assistant",
            "content": "cut \ud83d \u2028",
            "tool_calls": [
                {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "1", "score": 0.5, "n": 3},
        {"role": "tool", "values": [0, 1], "nan": "NaN", "set": "{1}", "5": [1, None, True]},
    ]
    text = to_json(rollout_to_dict(rollout))
    assert text.isascii() and "\n" not in text
    assert through_json(rollout) == rollout


def test_numbers_that_json_lacks_survive() -> None:
    answer = response(
        extra={"prompt_token_ids": [1]}, token_ids=[5, 6], token_logprobs=[None, -math.inf]
    )
    turn = through_json(rollout_from_state(EXAMPLE, 0, state(answer), 0.0)).turns[0]
    assert math.isnan(turn.logprobs[0]) and turn.logprobs[1] == -math.inf

    score = Score(
        "k",
        np.float64(0.5),
        {"a": np.float32(0.25), "nan": math.nan, "inf": math.inf, "flag": np.bool_(True)},
        {"f": "ok"},
        "r1",
    )
    read = score_from_dict(json.loads(to_json(score_to_dict(score))))
    assert (read.key, read.reward, read.outcomes, read.rubric) == ("k", 0.5, {"f": "ok"}, "r1")
    assert read.metrics["a"] == 0.25 and read.metrics["flag"] == 1.0
    assert math.isnan(read.metrics["nan"]) and read.metrics["inf"] == math.inf


def test_a_failure_is_data() -> None:
    failure = Failure("provider", "RateLimitError", "slow down")
    rollout = failed_rollout(EXAMPLE, 2, failure, time.monotonic())
    assert (rollout.error, rollout.stop_reason, rollout.completion) == (failure, "error", [])
    assert through_json(rollout) == rollout
    text = Example(0, "plain", digest="d")
    assert failed_rollout(text, 0, failure, 0.0).completion == ""
    unscored = Score(rollout.key, None)
    assert score_from_dict(json.loads(to_json(score_to_dict(unscored)))) == unscored


def test_other_schemas_and_damage_are_refused() -> None:
    good = rollout_to_dict(failed_rollout(EXAMPLE, 0, Failure("provider", "X", ""), 0.0))
    with pytest.raises(StorageError, match="schema"):
        rollout_from_dict({**good, "schema": 99})
    with pytest.raises(StorageError, match="kind"):
        score_from_dict(good)
    with pytest.raises(StorageError, match="damaged"):
        rollout_from_dict({key: value for key, value in good.items() if key != "turns"})
