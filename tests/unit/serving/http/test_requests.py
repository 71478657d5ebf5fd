"""What requests may say, and how a wrong one is told."""

import pytest

from vf_pipeline.serving.http.errors import ApiError
from vf_pipeline.serving.http.requests import ChatRequest, CompletionRequest, parse


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
