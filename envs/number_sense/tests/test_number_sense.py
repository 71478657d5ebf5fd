import asyncio
import re
from itertools import pairwise

import number_sense
import pytest

import vf_pipeline as vf

WORDING = {
    "larger": (r"Which number is larger: (\d+) or (\d+)\?", lambda n: max(n)),
    "largest-of-three": (r"Which number is the largest: (\d+), (\d+) or (\d+)\?", lambda n: max(n)),
    "next": (r"Which number comes right after (\d+)\?", lambda n: n[0] + 1),
    "last-of-three": (r"Which number stands last: (\d+), (\d+), (\d+)\?", lambda n: n[2]),
    "smaller": (r"Which number is smaller: (\d+) or (\d+)\?", lambda n: min(n)),
    "smallest-of-three": (
        r"Which number is the smallest: (\d+), (\d+) or (\d+)\?",
        lambda n: sorted(n)[0],
    ),
    "parity": (r"Is (\d+) even or odd\?", lambda n: "odd" if str(n[0])[-1] in "13579" else "even"),
}


def question_of(example):
    system, user = example.prompt
    assert system == {"role": "system", "content": "Answer with just the result."}
    assert user["role"] == "user"
    return user["content"]


@pytest.mark.parametrize("kind", WORDING)
def test_every_question_has_its_wording_and_its_answer(kind):
    pattern, solve = WORDING[kind]
    for example in number_sense.load_environment(kinds=[kind], num_examples=300).examples("train"):
        found = re.fullmatch(pattern, question_of(example))
        numbers = [int(text) for text in found.groups()]
        assert example.answer == str(solve(numbers))
        assert example.task == kind
        assert len(set(numbers)) == len(numbers)
        assert all(10 <= number <= 999 for number in numbers)
        assert len(numbers) == 1 or max(numbers) <= 99


def test_the_default_is_four_kinds_in_turn_and_all_questions_differ():
    examples = number_sense.load_environment().examples("train")
    assert len(examples) == 3600
    assert [e.task for e in examples[:5]] == [
        "larger",
        "largest-of-three",
        "next",
        "last-of-three",
        "larger",
    ]
    assert all(a.task != b.task for a, b in pairwise(examples))
    assert len({question_of(e) for e in examples}) == 3600
    assert len({e.digest for e in examples}) == 3600


def test_a_whole_kind_can_be_used_up_and_no_more():
    numbers = number_sense.load_environment(kinds=["next"], num_examples=990).examples("train")
    assert sorted(int(e.answer) for e in numbers) == list(range(11, 1001))
    pairs = number_sense.load_environment(kinds=["larger"], num_examples=8010).examples("train")
    assert len({question_of(e) for e in pairs}) == 8010
    with pytest.raises(vf.ConfigError, match=r"'next' has only 990 different questions, 991"):
        number_sense.load_environment(kinds=["next"], num_examples=991)
    with pytest.raises(vf.ConfigError, match=r"'larger' has only 8010"):
        number_sense.load_environment(kinds=["larger"], num_examples=8011)


def test_the_seed_chooses_the_questions_whatever_other_kinds_there_are():
    def questions(**args):
        examples = number_sense.load_environment(**args).examples("train")
        return [question_of(e) for e in examples if e.task == "larger"]

    first = questions(num_examples=400)
    assert questions(num_examples=400) == first
    assert questions(num_examples=400, seed=1) != first
    assert questions(num_examples=100, kinds=["larger"]) == first


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"kinds": ["lager"]}, "did you mean 'larger'"),
        ({"kinds": ["next", "next"]}, "given twice"),
        ({"kinds": []}, "kinds is"),
        ({"kinds": "next"}, "kinds is 'next'"),
        ({"num_examples": 0}, "num_examples is 0"),
    ],
)
def test_wrong_arguments_are_named(args, message):
    with pytest.raises(vf.ConfigError, match=message):
        number_sense.load_environment(**args)


@pytest.mark.parametrize(
    ("text", "stop_reason", "reward"),
    [
        ("71", "stop", 1.0),
        (" 71\n", "stop", 1.0),
        ("71.", "stop", 0.0),
        ("The larger is 71", "stop", 0.0),
        ("17", "stop", 0.0),
        ("", "stop", 0.0),
        ("71", "length", 0.0),
    ],
)
def test_only_the_whole_answer_counts_and_only_when_it_ended(text, stop_reason, reward):
    env = number_sense.load_environment(num_examples=4)
    state = {
        "prompt": [],
        "completion": [{"role": "assistant", "content": text}],
        "answer": "71",
        "stop_reason": stop_reason,
    }
    outcome = asyncio.run(env.rubric.score(state))
    assert outcome.reward == reward
    assert outcome.metrics == {"exact_match": reward, "answer_length": float(len(text.strip()))}


def test_a_model_that_knows_everything_gets_every_reward():
    env = number_sense.load_environment(num_examples=40)

    def know(messages):
        text = messages[-1]["content"]
        for pattern, solve in WORDING.values():
            if found := re.fullmatch(pattern, text):
                return str(solve([int(number) for number in found.groups()]))
        raise AssertionError(text)

    async def play():
        client = vf.FakeClient(know)
        rewards = []
        for e in env.examples("eval"):
            row = {"prompt": e.prompt, "answer": e.answer, "task": e.task, "info": e.info}
            state = await env.rollout(row, client, "fake", {"max_tokens": 8})
            rewards.append((await env.rubric.score(state)).reward)
        return rewards

    assert asyncio.run(play()) == [1.0] * 40


def test_worked_examples_are_questions_with_their_answers():
    env = number_sense.load_environment(num_examples=40)
    examples = env.examples("train")
    shots = env.shots("next", 2, examples)
    first, second = (e for e in examples if e.task == "next" and e in examples[:8])
    assert shots == [
        {"role": "user", "content": question_of(first)},
        {"role": "assistant", "content": first.answer},
        {"role": "user", "content": question_of(second)},
        {"role": "assistant", "content": second.answer},
    ]
