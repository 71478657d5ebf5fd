"""Playing: bounded, shared first turns, failures as data, clean cancellation."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from vf_pipeline.errors import (
    AuthError,
    EnvironmentFault,
    ProviderError,
    RubricError,
    StorageError,
    UnreachableError,
)
from vf_pipeline.rollouts.job import group_jobs
from vf_pipeline.rollouts.journal import Journal, count_journal, read_journal
from vf_pipeline.rollouts.runner import play, play_group
from vf_pipeline.tokens.client import TokenClient
from vf_pipeline.types import Example, Rollout, Score, ScoredRollout, Usage


class Server:
    """Answers chats with numbered choices; remembers what it was asked."""

    def __init__(self, *, most_choices: int = 99, delay_s: float = 0.0, error: Any = None) -> None:
        self.most_choices = most_choices
        self.delay_s = delay_s
        self.error = error
        self.requests: list[dict[str, Any]] = []
        self.in_flight = 0
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **request: Any) -> ChatCompletion:
        first = sum(earlier.get("n", 1) for earlier in self.requests)
        self.requests.append(request)
        self.in_flight += 1
        try:
            await asyncio.sleep(self.delay_s)
            error = self.error(request) if callable(self.error) else self.error
            if error is not None:
                raise error
        finally:
            self.in_flight -= 1
        count = min(request.get("n", 1), self.most_choices)
        choices = [
            {
                "index": i,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"reply {first + i}"},
            }
            for i in reversed(range(count))
        ]
        usage = {"prompt_tokens": 10, "completion_tokens": 3 * count + 1, "total_tokens": 0}
        fields = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        return ChatCompletion.model_validate({**fields, "choices": choices, "usage": usage})


class Rubric:
    async def score(self, state: dict[str, Any]) -> Any:
        return SimpleNamespace(reward=1.0, metrics={"turns": float(state["turn"])}, outcomes={})

    def digest(self) -> str:
        return "r1"


class Env:
    """Asks a question in as many turns as wanted; ``hook`` runs before each rollout."""

    def __init__(self, turns: int = 1, hook: Callable[..., Awaitable[None]] | None = None) -> None:
        self.turns = turns
        self.hook = hook
        self.rubric: Any = Rubric()
        self.started: list[int] = []
        self.in_flight = 0
        self.peak = 0

    async def rollout(
        self, input: dict[str, Any], client: Any, model: str, sampling_args: Any = None
    ) -> dict[str, Any]:
        self.started.append(input["example_id"])
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if self.hook is not None:
                await self.hook(input, client)
            prompt, completion, responses = input["prompt"], [], []
            for turn in range(self.turns):
                if turn:
                    completion.append({"role": "user", "content": "go on"})
                answer = await client.chat.completions.create(
                    model=model, messages=[*prompt, *completion], **sampling_args
                )
                responses.append(answer)
                text = answer.choices[0].message.content
                completion.append({"role": "assistant", "content": text})
            prompt.append("mutated")
            return {**input, "completion": completion, "responses": responses, "turn": self.turns}
        finally:
            self.in_flight -= 1


def example(number: int) -> Example:
    return Example(number, [{"role": "user", "content": f"q{number}"}], "a", "t", {}, f"d{number}")


def group(env: Any, client: Any, n: int = 4, **kw: Any) -> list[ScoredRollout]:
    indices = kw.pop("indices", None)
    jobs = group_jobs(
        kw.pop("of", example(0)),
        "m",
        kw.pop("sampling", {"temperature": 1.0}),
        kw.pop("seed", 0),
        range(n) if indices is None else indices,
    )
    return asyncio.run(play_group(env, jobs, client, whole=indices in (None, list(range(n))), **kw))


def play_all(env: Any, client: Any, count: int = 3, **kw: Any) -> list[ScoredRollout]:
    examples = [example(i) for i in range(count)]
    options = {"sampling": {}, "rollouts_per_example": 2, "max_concurrent": 4, "seed": 0, **kw}
    return asyncio.run(play(env, examples, client, "m", **options))


def texts(pairs: list[ScoredRollout]) -> list[str]:
    return [pair[0].completion[0]["content"] for pair in pairs]  # type: ignore[index]


# -- the shared first turn ---------------------------------------------------------------------


def test_a_group_is_one_request() -> None:
    server = Server()
    pairs = group(Env(), server)
    assert len(server.requests) == 1
    seed = server.requests[0].pop("seed")
    assert 0 <= seed < 2**31
    assert server.requests[0] == {
        "model": "m", "messages": [{"role": "user", "content": "q0"}], "temperature": 1.0, "n": 4
    }  # fmt: skip
    assert texts(pairs) == ["reply 0", "reply 1", "reply 2", "reply 3"]
    assert [pair[0].index for pair in pairs] == [0, 1, 2, 3]
    assert [pair[1] for pair in pairs] == [
        Score(f"d0:0:{i}", 1.0, {"turns": 1.0}, {}, "r1") for i in range(4)
    ]


def test_the_usage_of_a_shared_request_adds_up() -> None:
    pairs = group(Env(), Server())
    assert [pair[0].usage for pair in pairs] == [
        Usage(3, 4), Usage(3, 3), Usage(2, 3), Usage(2, 3)
    ]  # fmt: skip


def test_later_turns_are_asked_one_by_one_with_seeds_of_their_own() -> None:
    server = Server()
    group(Env(turns=3), server, n=2)
    assert [request.get("n", 1) for request in server.requests] == [2, 1, 1, 1, 1]
    assert len({request["seed"] for request in server.requests}) == 5
    assert all(len(request["messages"]) in (3, 5) for request in server.requests[1:])


def test_choices_that_a_server_withholds_are_asked_for() -> None:
    server = Server(most_choices=1)
    pairs = group(Env(), server, n=3)
    assert [request.get("n", 1) for request in server.requests] == [3, 1, 1]
    assert len({request["seed"] for request in server.requests}) == 3
    assert texts(pairs) == ["reply 0", "reply 3", "reply 4"]


def test_a_request_of_another_kind_is_not_shared() -> None:
    async def differ(input: dict[str, Any], client: Any) -> None:
        input["prompt"][0]["content"] += str(len(env.started) // 3)

    env = Env(hook=differ)
    server = Server()
    pairs = group(env, server, n=3)
    assert sorted(request.get("n", 1) for request in server.requests) == [1, 3]
    assert len(pairs) == 3 and len(set(texts(pairs))) == 3


def test_seeds_depend_on_run_content_and_part() -> None:
    def seed_of(**kw: Any) -> int:
        server = Server()
        group(Env(), server, n=4, **kw)
        return int(server.requests[0]["seed"])

    base = seed_of()
    assert seed_of() == base
    assert seed_of(seed=1) != base
    assert seed_of(of=example(1)) != base
    assert seed_of(indices=[0, 1, 2, 3]) == base
    assert seed_of(indices=[2, 3]) != base
    assert seed_of(sampling={"temperature": 1.0, "seed": 1}) == seed_of(seed=1)


def test_a_part_of_a_group_keeps_its_indices() -> None:
    server = Server()
    pairs = group(Env(), server, indices=[3, 1])
    assert server.requests[0]["n"] == 2
    assert [pair[0].index for pair in pairs] == [3, 1]


def test_single_rollouts_send_no_n() -> None:
    server = Server()
    group(Env(), server, n=1)
    assert "n" not in server.requests[0]


def test_an_impatient_rollout_does_not_take_the_answer_from_the_others() -> None:
    async def impatient(input: dict[str, Any], client: Any) -> None:
        if len(env.started) == 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.chat.completions.create(
                        model="m", messages=input["prompt"], temperature=1.0
                    )
            raise ValueError("gave up")

    env = Env(hook=impatient)
    server = Server(delay_s=0.05)
    pairs = group(env, server, n=3)
    assert [pair[0].error is None for pair in pairs] == [False, True, True]
    assert len(server.requests) == 1


def test_a_failed_shared_request_fails_each_rollout_by_itself() -> None:
    pairs = group(Env(), Server(error=ProviderError("500")), n=3)
    assert [pair[0].error and pair[0].error.boundary for pair in pairs] == ["provider"] * 3


def test_same_words_in_other_tokens_keep_their_own_ids() -> None:
    class Tokens:
        """A completion endpoint that says "same" each time, in other ids."""

        def __init__(self) -> None:
            self.requests: list[dict[str, Any]] = []
            self.completions = self
            self.endpoint = SimpleNamespace(base_url="http://h/v1")

        async def create(self, **request: Any) -> Completion:
            self.requests.append(request)
            choices = [
                {"index": i, "text": "same", "finish_reason": "stop", "token_ids": [50 + i],
                 "logprobs": {"token_logprobs": [-0.5]}}
                for i in range(request.get("n", 1))
            ]  # fmt: skip
            fields = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
            return Completion.construct(**fields, choices=choices, usage=None)

    class Renderer:
        def render(self, messages: Any, tools: Any = None) -> list[int]:
            return [1]

        def extend(self, ids: Any, new: Any) -> list[int]:
            return [*ids, 2]

    server = Tokens()
    client = TokenClient(server, Renderer())  # type: ignore[arg-type]
    pairs = group(Env(turns=2), client, n=2)
    assert [request["prompt"] for request in server.requests] == [[1], [1, 50, 2], [1, 51, 2]]
    for i, (rollout, _) in enumerate(pairs):
        assert [turn.prompt_ids for turn in rollout.turns] == [(1,), (1, 50 + i, 2)]
        assert rollout.turns[0].completion_ids == (50 + i,)
        assert rollout.turns[0].logprobs == (-0.5,)


# -- many examples ------------------------------------------------------------------------------


def test_all_is_played_in_order_and_bounded() -> None:
    env, server = Env(), Server(delay_s=0.005)
    seen: list[str] = []
    pairs = play_all(
        env, server, count=6, rollouts_per_example=3, max_concurrent=4,
        on_result=lambda played: seen.append(played.key),
    )  # fmt: skip
    keys = [f"d{i}:{i}:{j}" for i in range(6) for j in range(3)]
    assert [pair[0].key for pair in pairs] == keys
    assert sorted(seen) == keys
    assert env.started == sorted(env.started)
    assert env.peak == 4
    assert [request["n"] for request in server.requests] == [3] * 6


def test_a_group_larger_than_the_bound_is_still_one_request() -> None:
    env, server = Env(), Server()
    play_all(env, server, count=1, rollouts_per_example=5, max_concurrent=2)
    assert (env.peak, len(server.requests)) == (2, 1)


def test_nothing_to_play() -> None:
    assert play_all(Env(), Server(), count=0) == []


def test_examples_stay_as_they_are() -> None:
    one = example(0)
    group(Env(), Server(), of=one)
    assert one.prompt == [{"role": "user", "content": "q0"}]


def test_what_the_journal_has_is_not_played_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal.open(path, {}) as journal:
        first = play_all(Env(), Server(), count=2, journal=journal)
    env, server = Env(), Server()
    with Journal.open(path, {}) as journal:
        pairs = play_all(env, server, count=3, journal=journal)
    assert env.started == [2, 2]
    assert pairs[:4] == first
    assert [pair[0].key for pair in pairs[4:]] == ["d2:2:0", "d2:2:1"]
    assert read_journal(path) == pairs


def test_failures_are_played_again_but_not_for_ever(tmp_path: Path) -> None:
    async def fail(input: dict[str, Any], client: Any) -> None:
        if input["example_id"] == 1:
            raise ValueError("bad example")

    path, started = tmp_path / "j", []
    for _ in range(5):
        env = Env(hook=fail)
        with Journal.open(path, {}) as journal:
            pairs = play_all(env, Server(), count=2, rollouts_per_example=1, journal=journal)
        started.append(env.started)
    assert started == [[0, 1], [1], [1], [], []]
    assert [pair[0].error is None for pair in pairs] == [True, False]


# -- failures -----------------------------------------------------------------------------------


def sdk_error() -> openai.APIConnectionError:
    import httpx2

    return openai.APIConnectionError(request=httpx2.Request("POST", "http://h"))


@pytest.mark.parametrize(
    ("error", "boundary", "kind", "message"),
    [
        (ProviderError("boom", "try later"), "provider", "ProviderError", "boom (try later)"),
        (AuthError("no key"), "provider", "AuthError", "no key"),
        (sdk_error(), "provider", "APIConnectionError", "Connection error."),
        (ValueError("bad row"), "environment", "ValueError", "bad row"),
        (EnvironmentFault("tool died"), "environment", "EnvironmentFault", "tool died"),
        (SystemExit(1), "environment", "SystemExit", "1"),
        (asyncio.CancelledError(), "environment", "CancelledError", ""),
        (TimeoutError("slow tool"), "environment", "TimeoutError", "slow tool"),
    ],
)
def test_failures_are_data(error: BaseException, boundary: str, kind: str, message: str) -> None:
    async def fail(input: dict[str, Any], client: Any) -> None:
        if len(env.started) == 1:
            raise error

    env = Env(hook=fail)
    (bad, bad_score), (good, _) = group(env, Server(), n=2)
    assert bad.error is not None
    assert (bad.error.boundary, bad.error.kind, bad.error.message) == (boundary, kind, message)
    assert bad.stop_reason == "error" and bad_score.reward is None
    assert bad_score.outcomes == {"rollout": f"no score: {boundary} error {kind}"}
    assert good.error is None


def test_a_rollout_that_hangs_is_ended() -> None:
    async def hang(input: dict[str, Any], client: Any) -> None:
        await asyncio.sleep(60)

    ((rollout, _),) = group(Env(hook=hang), Server(), n=1, rollout_timeout_s=0.05)
    assert rollout.error is not None
    assert rollout.error.message == "the rollout took longer than 0.05 s"


def test_a_rubric_that_fails_leaves_its_rollout_unscored() -> None:
    class Broken(Rubric):
        async def score(self, state: dict[str, Any]) -> Any:
            raise RubricError("no judge")

    env = Env()
    env.rubric = Broken()
    ((rollout, score),) = group(env, Server(), n=1)
    assert rollout.error is None
    assert score == Score("d0:0:0", None, {}, {"rubric": "error: RubricError: no judge"}, "r1")


@pytest.mark.parametrize("error", [AuthError("no key"), UnreachableError("nobody there")])
def test_hopeless_errors_end_the_run_at_once(tmp_path: Path, error: ProviderError) -> None:
    env = Env()
    with Journal.open(tmp_path / "j", {}) as journal, pytest.raises(type(error)) as caught:
        play_all(env, Server(error=error), count=100, journal=journal)
    assert caught.value is error
    assert len(env.started) <= 8
    assert read_journal(tmp_path / "j") == []


def test_after_a_success_even_hopeless_errors_are_data() -> None:
    def later(request: dict[str, Any]) -> Exception | None:
        is_first = request["messages"][0]["content"] == "q0"
        return None if is_first else UnreachableError("died")

    pairs = play_all(Env(), Server(error=later), count=3, rollouts_per_example=1, max_concurrent=1)
    assert [pair[0].error and pair[0].error.kind for pair in pairs] == [
        None, "UnreachableError", "UnreachableError"
    ]  # fmt: skip


def test_a_journal_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    class Full(Journal):
        def append(self, rollout: Rollout, score: Score) -> None:
            raise StorageError("the disk is full")

    env = Env()
    with Full.open(tmp_path / "j", {}) as journal, pytest.raises(StorageError, match="full"):
        play_all(env, Server(), count=50, journal=journal)
    assert len(env.started) < 20


def test_cancelling_ends_everything_and_keeps_what_is_done(tmp_path: Path) -> None:
    async def hang_later(input: dict[str, Any], client: Any) -> None:
        if input["example_id"] > 0:
            await client.chat.completions.create(model="m", messages=input["prompt"])

    def slow(request: dict[str, Any]) -> None:
        server.delay_s = 60.0

    path = tmp_path / "j"
    server = Server(error=slow)
    env = Env(hook=hang_later)

    async def main() -> None:
        with Journal.open(path, {}) as journal:
            running = asyncio.create_task(
                play(
                    env, [example(i) for i in range(20)], server, "m", sampling={},
                    rollouts_per_example=2, max_concurrent=6, seed=0, journal=journal,
                )
            )  # fmt: skip
            while count_journal(path).done < 2 or server.in_flight == 0:
                await asyncio.sleep(0.001)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert (env.in_flight, server.in_flight) == (0, 0)
    assert [pair[0].key for pair in read_journal(path)] == ["d0:0:0", "d0:0:1"]


# -- with the library's own environment and fake -------------------------------------------------


def test_the_librarys_own_pieces_play_together(tmp_path: Path) -> None:
    from vf_pipeline.testing import EchoEnvironment, FakeClient

    env = EchoEnvironment(num_examples=3)
    client = FakeClient(lambda messages: messages[-1]["content"])
    with Journal.open(tmp_path / "j", {}) as journal:
        pairs = asyncio.run(
            play(
                env, env.examples("eval"), client, "fake", sampling={"temperature": 0.0},
                rollouts_per_example=2, max_concurrent=4, seed=0, journal=journal,
            )
        )  # fmt: skip
    assert len(pairs) == 6
    assert [pair[0].error for pair in pairs] == [None] * 6
    assert [pair[1].reward for pair in pairs] == [1.0] * 6
    assert len(client.requests) == 3
