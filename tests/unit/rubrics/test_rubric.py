import asyncio
import logging
import math
from fractions import Fraction

import numpy as np
import pytest

from vf_pipeline.errors import ConfigError, RubricError
from vf_pipeline.parsers import Parser
from vf_pipeline.rubrics import Outcome, Rubric, RubricGroup

STATE = {
    "input": {"prompt": [], "difficulty": 3},
    "prompt": [{"role": "user", "content": "2+2?"}],
    "completion": [{"role": "assistant", "content": "4"}],
    "answer": "4",
    "task": "sum",
    "info": {"unit": "none"},
    "turn": 1,
}


def score(rubric, state=STATE):
    return asyncio.run(rubric.score(state))


def right(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


async def late(answer):
    await asyncio.sleep(0)
    return len(answer)


def failing(completion):
    raise ValueError("no such\n   thing")


def test_the_reward_is_the_weighted_sum():
    outcome = score(Rubric([right, late], weights=[0.5, 2]))
    assert outcome == Outcome(
        0.5 * 1 + 2 * 1, {"right": 1.0, "late": 1.0}, {"right": "ok", "late": "ok"}
    )


def test_weights_are_one_by_default_and_zero_makes_a_metric():
    rubric = Rubric([right])
    rubric.add_metric(late)
    rubric.add_reward_func(right, weight=3)
    assert rubric.get_reward_weights() == [1.0, 0.0, 3.0]
    assert rubric.get_reward_funcs() == [right, late, right]
    assert rubric.get_reward_func_names() == ["right", "late", "right_2"]
    assert score(rubric).reward == 4.0
    assert score(Rubric()) == Outcome(0.0, {}, {})


def test_functions_get_what_they_name():
    seen = {}

    def some(prompt, completion, answer, state, task, info, parser, judge, difficulty, other=7):
        seen.update(locals())
        return 0

    def all_of_it(**kwargs):
        seen["all"] = kwargs
        return 0

    parser = Parser()
    rubric = Rubric([some, all_of_it], parser=parser)
    rubric.add_class_object("judge", "the judge")
    assert score(rubric).reward == 0.0
    everything = seen.pop("all")
    assert seen.pop("other") == 7
    assert seen.pop("state") is STATE
    expected = {k: STATE[k] for k in ("prompt", "completion", "answer", "task", "info")}
    seen.pop("seen", None)
    assert seen == {**expected, "parser": parser, "judge": "the judge", "difficulty": 3}
    assert everything == {**seen, "state": STATE}


def test_the_rollouts_prompt_wins_over_the_rows():
    rubric = Rubric([lambda prompt: float(len(prompt))])
    assert score(rubric).metrics == {"function": 1.0}


def test_a_function_that_raises_leaves_the_rollout_unscored():
    outcome = score(Rubric([failing, right]))
    assert outcome.reward is None
    assert outcome.metrics == {"right": 1.0}
    assert outcome.outcomes == {"failing": "ValueError: no such thing", "right": "ok"}


def test_a_metric_that_raises_does_not_touch_the_reward():
    outcome = score(Rubric([right, failing], weights=[1, 0]))
    assert outcome.reward == 1.0
    assert outcome.outcomes["failing"].startswith("ValueError")


def test_a_failure_is_logged_once_with_its_cause(caplog):
    rubric = Rubric([failing])
    with caplog.at_level(logging.WARNING):
        score(rubric)
        score(rubric)
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


def test_a_long_reason_is_cut():
    def talkative():
        raise ValueError("x" * 10_000)

    assert len(score(Rubric([talkative])).outcomes["talkative"]) == 500


def test_cancelling_is_no_reason():
    async def cancelled():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        score(Rubric([cancelled]))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array([0.25]), 0.25),
        (np.array(0.75), 0.75),
    ],
)
def test_numbers_of_every_kind_count(value, number):
    outcome = score(Rubric([lambda: value]))
    assert outcome == Outcome(number, {"function": number}, {"function": "ok"})
    assert type(outcome.reward) is float


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        np.float64("nan"),
        None,
        "0.5",
        b"1",
        [1.0],
        {"a": 1},
        1j,
        np.array([1.0, 2.0]),
        10**400,
    ],
)
def test_what_is_no_finite_number_leaves_the_rollout_unscored(value):
    outcome = score(Rubric([lambda: value]))
    assert outcome.reward is None
    assert outcome.metrics == {}
    assert outcome.outcomes["function"] != "ok"


def test_a_sum_beyond_all_numbers_is_no_reward():
    outcome = score(Rubric([lambda: 1e308], weights=[1e9]))
    assert outcome.reward is None
    assert outcome.outcomes == {"function": "ok", "reward": "the weighted sum is not finite"}


def test_asking_for_what_is_not_there_names_it():
    def curious(completions):
        return 1.0

    outcome = score(Rubric([curious]))
    assert outcome.reward is None
    assert "'completions', which is not there" in outcome.outcomes["curious"]


def test_one_function_can_be_called_alone():
    assert asyncio.run(Rubric().call_reward_func(late, STATE)) == 1.0
    with pytest.raises(RubricError, match="returned nan"):
        asyncio.run(Rubric().call_reward_func(lambda: math.nan, STATE))


@pytest.mark.parametrize("weights", [[], [1], [1, 2, 3]])
def test_weights_must_be_as_many_as_functions(weights):
    with pytest.raises(ConfigError, match=f"2 functions and {len(weights)} weights"):
        Rubric([right, late], weights=weights)


@pytest.mark.parametrize("weight", [math.nan, math.inf, "1"])
def test_weights_must_be_finite(weight):
    with pytest.raises(ConfigError, match="right"):
        Rubric([right], weights=[weight])


def test_a_reward_function_must_be_callable():
    with pytest.raises(ConfigError, match="cannot be called"):
        Rubric(["right"])


def test_a_group_sums_rewards_and_equal_metrics():
    group = RubricGroup([Rubric([right], [1]), Rubric([right, late], [2, 3])])
    assert score(group) == Outcome(6.0, {"right": 2.0, "late": 1.0}, {"right": "ok", "late": "ok"})
    assert group.get_reward_func_names() == ["right", "right", "late"]
    assert group.get_reward_weights() == [1.0, 2.0, 3.0]
    assert group.get_reward_funcs() == [right, right, late]


def test_a_group_gives_each_rubric_its_own_objects():
    first, second = Rubric([lambda judge: judge]), Rubric([lambda judge: judge])
    first.add_class_object("judge", 1)
    second.add_class_object("judge", 10)
    assert score(RubricGroup([first, second])).reward == 11.0


@pytest.mark.parametrize("order", [1, -1])
def test_a_group_is_unscored_when_one_rubric_is(order):
    rubrics = [Rubric([failing, right]), Rubric([right, late])][::order]
    outcome = score(RubricGroup(rubrics))
    assert outcome.reward is None
    assert outcome.metrics == {"right": 2.0, "late": 1.0}
    assert outcome.outcomes["failing"] == "ValueError: no such thing"


def test_a_metric_that_half_failed_is_no_sum():
    def sometimes(state):
        raise ValueError("now")

    def good():
        return 1.0

    good.__name__ = "sometimes"
    outcome = score(RubricGroup([Rubric([sometimes], [0]), Rubric([good])]))
    assert outcome.reward == 1.0
    assert outcome.metrics == {}
    assert outcome.outcomes == {"sometimes": "ValueError: now"}


def test_a_group_needs_a_rubric_and_the_first_takes_new_functions():
    with pytest.raises(ConfigError):
        RubricGroup([])
    first = Rubric()
    RubricGroup([first, Rubric()]).add_reward_func(right)
    assert first.funcs == [right]
