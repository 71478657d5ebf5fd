import asyncio

import pytest

from vf_pipeline.environments import MultiTurnEnv, SingleTurnEnv, cleanup, stop
from vf_pipeline.errors import EnvironmentFault, ProviderError
from vf_pipeline.rubrics import Rubric
from vf_pipeline.testing import EchoEnvironment, FakeClient, Reply


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Guess(MultiTurnEnv):
    """The model guesses a number; the environment says higher or lower."""

    def __init__(self, **kwargs):
        rows = [{"question": "Guess 1..9.", "answer": "7", "task": "guess", "info": {"n": 9}}]
        super().__init__(**{"dataset": rows, **kwargs})
        self.tidied = []

    async def setup_state(self, state):
        state["guesses"] = []
        return state

    @stop
    async def solved(self, state):
        return bool(state["guesses"]) and state["guesses"][-1] == state["answer"]

    async def add_model_response(self, state, prompt, response):
        await super().add_model_response(state, prompt, response)
        state["guesses"].append(response.choices[0].message.content)

    async def env_response(self, messages, state):
        assert messages[-1] == assistant(state["guesses"][-1])
        return [user("higher" if state["guesses"][-1] < state["answer"] else "lower")]

    @cleanup
    async def tidy(self, state):
        self.tidied.append(state["turn"])


def play(env, replies, sampling_args=None, client=None):
    (example,) = env.examples("train", n=1)
    row = {
        "prompt": example.prompt,
        "answer": example.answer,
        "task": example.task,
        "info": example.info,
        "example_id": example.example_id,
    }
    client = FakeClient(replies) if client is None else client
    return asyncio.run(env.rollout(row, client, "m", sampling_args))


def test_a_game_is_played_to_its_end():
    env = Guess(max_turns=10)
    client = FakeClient(["3", "8", "7"])
    state = play(env, None, {"temperature": 0.0}, client)
    assert state["completion"] == [
        assistant("3"),
        user("higher"),
        assistant("8"),
        user("lower"),
        assistant("7"),
    ]
    question = user("Guess 1..9.")
    assert [r["messages"] for r in client.requests] == [
        [question],
        [question, assistant("3"), user("higher")],
        [question, assistant("3"), user("higher"), assistant("8"), user("lower")],
    ]
    assert all(r["temperature"] == 0.0 for r in client.requests)
    assert (state["turn"], state["stop_reason"], state["stop_condition"]) == (
        3,
        "environment",
        "solved",
    )
    assert state["prompt"] == [question]
    assert (state["answer"], state["task"], state["info"]) == ("7", "guess", {"n": 9})
    assert [r.choices[0].message.content for r in state["responses"]] == ["3", "8", "7"]
    assert [step["completion"] for step in state["trajectory"]] == [
        [assistant("3")],
        [assistant("8")],
        [assistant("7")],
    ]
    assert state["trajectory"][1]["prompt"] == client.requests[1]["messages"]
    assert state["is_completed"]
    assert not state["is_truncated"]
    assert env.tidied == [3]


def test_turns_are_limited():
    state = play(Guess(max_turns=2), ["1"])
    assert (state["turn"], state["stop_reason"]) == (2, "max_turns")
    assert state["stop_condition"] == "max_turns_reached"
    assert state["completion"] == [assistant("1"), user("higher"), assistant("1")]


def test_a_better_reason_than_the_turn_limit_is_named():
    state = play(Guess(max_turns=2), ["1", "7"])
    assert (state["turn"], state["stop_reason"], state["stop_condition"]) == (
        2,
        "environment",
        "solved",
    )


def test_a_cut_turn_ends_the_rollout():
    state = play(Guess(max_turns=5), ["1", Reply("7", finish_reason="length")])
    assert (state["turn"], state["stop_reason"], state["is_truncated"]) == (2, "length", True)
    assert state["stop_condition"] == "response_truncated"
    assert state["completion"][-1] == assistant("7")


def test_an_environment_may_play_on_after_a_cut_turn():
    class Patient(Guess):
        async def response_truncated(self, state):
            return False

    state = play(Patient(max_turns=3), [Reply("1", finish_reason="length"), "7"])
    assert (state["turn"], state["stop_reason"], state["is_truncated"]) == (2, "environment", True)


def test_one_turn_ends_with_the_models_own_stop():
    state = play(EchoEnvironment(), ["echo 0"])
    assert (state["stop_reason"], state["turn"]) == ("stop", 1)
    assert state["completion"] == [assistant("echo 0")]
    state = play(EchoEnvironment(), [Reply("echo", "length")])
    assert state["stop_reason"] == "length"


def test_without_any_stop_the_turns_are_still_bounded(monkeypatch):
    monkeypatch.setattr("vf_pipeline.environments.multi_turn.MOST_TURNS", 4)
    state = play(Guess(), ["1"])
    assert (state["turn"], state["stop_reason"]) == (4, "max_turns")


def test_nothing_is_asked_when_the_game_is_over_before_it_began():
    class Over(Guess):
        @stop
        def at_once(self, state):
            return True

    client = FakeClient(["1"])
    state = play(Over(), None, None, client)
    assert (state["turn"], state["stop_reason"], client.requests) == (0, "environment", [])


def test_a_last_word_of_the_environment_ends_the_rollout():
    class Polite(Guess):
        async def env_response(self, messages, state):
            state["final_env_response"] = [user("Too bad.")]
            return state["final_env_response"]

    state = play(Polite(max_turns=9), ["1"])
    assert state["completion"] == [assistant("1"), user("Too bad.")]
    assert (state["turn"], state["stop_condition"]) == (1, "has_final_env_response")
    assert state["stop_reason"] == "environment"


def test_a_hook_may_name_the_reason():
    class Named(Guess):
        @stop
        async def gave_up(self, state):
            if state["turn"] == 1:
                state["stop_reason"] = "stop"
            return state["turn"] == 1

    assert play(Named(), ["1"])["stop_reason"] == "stop"


def test_older_forms_of_hooks_work():
    class Old(MultiTurnEnv):
        def setup_state(self, state):
            return {**state, "fresh": True}

        def is_completed(self, state):
            return state["turn"] >= 2

        def env_response(self, messages, state):
            return [user(f"after {len(messages)}")], state

    state = play(Old(dataset=[{"question": "q"}]), ["a", "b"])
    assert state["fresh"]
    assert state["completion"] == [assistant("a"), user("after 2"), assistant("b")]


def test_a_text_from_the_environment_is_the_users():
    class Short(Guess):
        async def env_response(self, messages, state):
            return "again"

    assert play(Short(max_turns=2), ["1"])["completion"][1] == user("again")


def test_a_story_is_told_in_text():
    class Story(MultiTurnEnv):
        async def env_response(self, messages, state):
            assert messages == "Once upon"
            return " a time"

    env = Story(dataset=[{"prompt": "Once"}], message_type="completion", max_turns=2)
    client = FakeClient([" upon", " there was"])
    state = play(env, None, None, client)
    assert state["completion"] == " upon a time there was"
    assert [r["prompt"] for r in client.requests] == ["Once", "Once upon a time"]


def test_tool_calls_are_kept_as_plain_messages():
    call = Reply("", "tool_calls", tool_calls=(("add", '{"a": 1}'),))
    state = play(Guess(max_turns=1), [call])
    (message,) = state["completion"]
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call-0",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a": 1}'},
            }
        ],
    }


def test_errors_propagate_and_the_rollout_is_tidied_up():
    env = Guess()
    with pytest.raises(ProviderError, match="gone"):
        play(env, ["1", ProviderError("gone")])

    class Broken(Guess):
        async def env_response(self, messages, state):
            raise KeyError("x")

    broken = Broken()
    with pytest.raises(KeyError):
        play(broken, ["1"])
    assert (env.tidied, broken.tidied) == ([1], [1])


def test_a_rollout_may_take_only_so_long():
    env = Guess(timeout_seconds=0.02)
    with pytest.raises(EnvironmentFault, match=r"example 0 took over 0\.02 s"):
        play(env, None, None, FakeClient(["1"], latency_s=5))
    assert env.tidied == [0]


def test_a_clients_own_timeout_is_not_the_rollouts():
    with pytest.raises(TimeoutError, match="socket"):
        play(Guess(timeout_seconds=60), [TimeoutError("socket")])


def test_rollouts_share_nothing():
    class Careless(Guess):
        async def setup_state(self, state):
            await super().setup_state(state)
            state["info"]["n"] = 0
            state["prompt"][0]["content"] += "!"

    env = Careless(max_turns=1)
    assert play(env, ["1"])["prompt"] == [user("Guess 1..9.!")]
    assert play(env, ["1"])["prompt"] == [user("Guess 1..9.!")]
    (example,) = env.examples("train")
    assert example.info == {"n": 9}


def test_reward_functions_see_further_columns():
    rows = [{"question": "q", "answer": "a"}]
    rubric = Rubric([lambda points, turns_wanted: points * turns_wanted])
    env = SingleTurnEnv(dataset=rows, rubric=rubric)
    row = {"prompt": [user("q")], "answer": "a", "points": 3, "turns_wanted": 2}

    async def score():
        return await env.rubric.score(await env.rollout(row, FakeClient(["x"]), "m"))

    assert asyncio.run(score()).reward == 6.0


def test_many_rollouts_run_at_once():
    env = Guess(max_turns=10)
    row = {"prompt": [user("Guess.")], "answer": "7"}
    client = FakeClient(lambda messages: {1: "3", 3: "9", 5: "7"}[len(messages)], latency_s=0.01)

    async def many():
        return await asyncio.gather(*(env.rollout(row, client, "m") for _ in range(20)))

    states = asyncio.run(many())
    assert {(s["turn"], s["stop_condition"]) for s in states} == {(3, "solved")}
    assert client.most_in_flight == 20
