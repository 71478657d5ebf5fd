"""The token client over a scripted completion endpoint, with words as tokens."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types import Completion

from vf_pipeline.errors import ConfigError, MalformedResponseError
from vf_pipeline.tokens.client import TokenClient

QUESTION = [{"role": "user", "content": "q1"}]
END = 0


class Words:
    """A renderer whose ids are hashes of words: enough to see what was sent."""

    def render(self, messages: Any, tools: Any = None) -> list[int]:
        return [100 + len(str(message["content"])) for message in messages] + [1]

    def extend(self, ids: Any, new: Any) -> list[int]:
        return [*ids, 2, *self.render(new)]


class Script:
    """Stands where the client stands; answers with the choices of a script."""

    def __init__(self, *answers: list[dict[str, Any]], **extra: Any) -> None:
        self.answers = list(answers)
        self.extra = extra
        self.requests: list[dict[str, Any]] = []
        self.endpoint = SimpleNamespace(base_url="http://h/v1")
        self.completions = self
        self.models = "models"

    async def create(self, **request: Any) -> Completion:
        self.requests.append(request)
        choices = [
            {
                "index": i,
                "text": choice["text"],
                "finish_reason": choice.get("finish", "stop"),
                "token_ids": choice["ids"],
                "logprobs": {"token_logprobs": [-0.5] * choice.get("logprobs", len(choice["ids"]))},
                **choice.get("more", {}),
            }
            for i, choice in enumerate(self.answers.pop(0))
        ]
        usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        fields = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
        return Completion.construct(**fields, choices=choices, usage=usage, **self.extra)


def make(*answers: list[dict[str, Any]], **extra: Any) -> tuple[TokenClient, Script]:
    script = Script(*answers, **extra)
    return TokenClient(script, Words()), script  # type: ignore[arg-type]


def ask(client: TokenClient, messages: Any, **kw: Any) -> Any:
    return asyncio.run(client.chat.completions.create(model="m", messages=messages, **kw))


def test_a_chat_becomes_ids_and_comes_back_with_ids() -> None:
    client, script = make([{"text": "hi", "ids": [7, END], "more": {"weight_version": "3"}}])
    answer = ask(
        client, QUESTION, max_completion_tokens=8, temperature=0.5, seed=9, logprobs=True,
        extra_body={"top_k": 4},
    )  # fmt: skip
    assert script.requests == [
        {"model": "m", "prompt": [102, 1], "max_tokens": 8, "temperature": 0.5, "seed": 9,
         "logprobs": 0, "extra_body": {"top_k": 4, "return_token_ids": True}}
    ]  # fmt: skip
    choice = answer.choices[0]
    assert answer.prompt_token_ids == [102, 1]
    assert choice.message.role == "assistant" and choice.message.content == "hi"
    assert choice.token_ids == [7, END]
    assert choice.token_logprobs == [-0.5, -0.5]
    assert choice.weight_version == "3"
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == 2


def test_the_next_turn_extends_the_ids_that_were_sampled() -> None:
    client, script = make([{"text": " hi ", "ids": [7, 8]}], [{"text": "b", "ids": [9]}])
    ask(client, QUESTION)
    said = {"role": "assistant", "content": "hi"}
    turn2 = [*QUESTION, said, {"role": "user", "content": "q22"}]
    answer = ask(client, turn2)
    assert script.requests[1]["prompt"] == [102, 1, 7, 8, 2, 103, 1]
    assert answer.prompt_token_ids == [102, 1, 7, 8, 2, 103, 1]
    assert client.forks == 0


def test_a_rewritten_history_is_rendered_anew_and_counted() -> None:
    client, script = make([{"text": "hi", "ids": [7, 8]}], [{"text": "b", "ids": [9]}])
    own = client.for_rollout()
    ask(own, QUESTION)
    summary = [{"role": "assistant", "content": "other"}, {"role": "user", "content": "q22"}]
    ask(own, [*QUESTION, *summary])
    assert script.requests[1]["prompt"] == [102, 105, 103, 1]
    assert (own.forks, client.forks) == (1, 1)


def test_few_shot_examples_are_no_fork() -> None:
    client, _ = make([{"text": "hi", "ids": [7]}])
    shots = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ask(client, [*shots, *QUESTION])
    assert client.forks == 0


def test_rollouts_that_said_the_same_keep_their_own_ids() -> None:
    client, script = make(
        [{"text": "hi", "ids": [7, 8]}, {"text": "hi", "ids": [6]}],
        [{"text": "x", "ids": [9]}],
        [{"text": "x", "ids": [9]}],
    )
    shared = ask(client, QUESTION, n=2)
    follow = [*QUESTION, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "z"}]
    for i, ids in enumerate([[7, 8], [6]]):
        own = client.for_rollout()
        own.remember(QUESTION, shared.model_copy(update={"choices": [shared.choices[i]]}))
        ask(own, follow)
        assert script.requests[i + 1]["prompt"] == [102, 1, *ids, 2, 101, 1]


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a", "ids": [1, 2], "logprobs": 1},
        {"text": "a", "ids": [1], "more": {"token_ids": None}},
        {"text": "a", "ids": [1], "more": {"logprobs": None}},
        {"text": "a", "ids": [1], "more": {"prompt_token_ids": [5, 5]}},
    ],
)
def test_answers_without_the_tokens_are_refused(choice: dict[str, Any]) -> None:
    client, _ = make([choice])
    with pytest.raises(MalformedResponseError):
        ask(client, QUESTION)


def test_an_aborted_answer_counts_as_cut() -> None:
    client, _ = make([{"text": "a", "ids": [1], "finish": "abort"}], weight_version="5")
    choice = ask(client, QUESTION).choices[0]
    assert choice.finish_reason == "length"
    assert choice.weight_version == "5"


def test_streams_are_refused() -> None:
    client, _ = make()
    with pytest.raises(ConfigError):
        ask(client, QUESTION, stream=True)
