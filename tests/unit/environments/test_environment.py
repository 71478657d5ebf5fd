import asyncio

import pytest

from vf_pipeline.environments import SingleTurnEnv
from vf_pipeline.environments.rows import content_digest, insert_shots
from vf_pipeline.errors import AuthError, ConfigError, EmptyResponseError
from vf_pipeline.parsers import ThinkParser
from vf_pipeline.rubrics import Rubric
from vf_pipeline.testing import EchoEnvironment, FakeClient
from vf_pipeline.types import Example

ROWS = [
    {"question": "1+1?", "answer": "2", "task": "sum", "info": {"level": 1}},
    {"question": "2+2?", "answer": 4},
    {"question": "3*3?", "answer": "9", "task": "product", "info": '{"level": 2}'},
]


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def prompts(rows, **kwargs):
    return [e.prompt for e in SingleTurnEnv(dataset=rows, **kwargs).examples("train")]


def respond(env, client, prompt, **kwargs):
    return asyncio.run(env.get_model_response({}, prompt, client, "m", **kwargs))


def test_rows_become_examples():
    first, second, third = SingleTurnEnv(dataset=ROWS).examples("train")
    digest = content_digest([user("1+1?")], "2", "sum", {"level": 1})
    assert first == Example(0, [user("1+1?")], "2", "sum", {"level": 1}, digest)
    assert (second.answer, second.task, second.info) == ("4", "default", {})
    assert (third.example_id, third.info) == (2, {"level": 2})


def test_the_system_prompt_and_the_shots_come_first():
    shots = [user("0+0?"), assistant("0")]
    assert prompts(ROWS[:1], system_prompt="Be brief.", few_shot=shots) == [
        [system("Be brief."), *shots, user("1+1?")]
    ]


@pytest.mark.parametrize(
    ("prompt", "built"),
    [
        ([user("a")], [system("S"), user("shot"), user("a")]),
        ([system("own"), user("a")], [system("own"), user("shot"), user("a")]),
        ("a", [system("S"), user("shot"), user("a")]),
        (
            [{"role": "user", "content": "a", "tool_calls": None}],
            [system("S"), user("shot"), user("a")],
        ),
        (
            [{"role": "assistant", "content": None}],
            [system("S"), user("shot"), {"role": "assistant", "content": None}],
        ),
    ],
)
def test_a_prompt_column_keeps_its_own_system_message(prompt, built):
    assert prompts([{"prompt": prompt}], system_prompt="S", few_shot=[user("shot")]) == [built]


def test_completion_prompts_stay_text():
    assert prompts([{"prompt": "Once"}], message_type="completion") == ["Once"]
    with pytest.raises(ConfigError, match=r"row 0 .* needs text in 'prompt'"):
        prompts([{"question": "a"}], message_type="completion")
    for extra in ({"system_prompt": "S"}, {"few_shot": [user("a")]}, {"oai_tools": [{}]}):
        with pytest.raises(ConfigError, match="completion"):
            prompts([{"prompt": "Once"}], message_type="completion", **extra)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, r"row 0 .* neither 'prompt' nor 'question' \(its columns: \['text'\]\)"),
        ({"prompt": []}, "neither text nor a list"),
        ({"prompt": [{"content": "a"}]}, "neither text nor a list"),
        ({"prompt": 3}, "neither text nor a list"),
        ({"question": "a", "info": "{"}, "'info' of row 0 is no JSON"),
        ({"question": "a", "info": [1]}, "'info' of row 0 is a list"),
        (["question"], "row 0 of dataset is a list"),
    ],
)
def test_wrong_rows_are_named(row, message):
    with pytest.raises(ConfigError, match=message):
        prompts([row])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "needs a dataset"),
        ({"dataset": ROWS, "message_type": "text"}, "unknown message_type 'text'"),
        ({"dataset": {"train": ROWS}}, r"dict of splits \['train'\]"),
        ({"dataset": "gsm8k"}, "dataset is a str"),
        ({"eval_dataset": iter(ROWS)}, "eval_dataset is a list_iterator"),
        ({"dataset": ROWS, "max_turn": 3}, "did you mean 'max_turns'"),
        ({"dataset": ROWS, "sytem_prompt": "x"}, "did you mean 'system_prompt'"),
        ({"dataset": ROWS, "rollout": 3}, "one of its methods"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        SingleTurnEnv(**kwargs).examples("train")


def test_other_keywords_become_attributes():
    env = SingleTurnEnv(
        dataset=ROWS, name="sums", max_concurrent=3, eval_model="x", env_args={"a": 1}
    )
    assert (env.name, env.max_concurrent, env.eval_model, env.env_args) == (
        "sums",
        3,
        "x",
        {"a": 1},
    )


def test_splits_fall_back_to_each_other():
    both = SingleTurnEnv(dataset=ROWS[:1], eval_dataset=ROWS[1:])
    assert [e.answer for e in both.examples("train")] == ["2"]
    assert [e.answer for e in both.examples("eval")] == ["4", "9"]
    assert len(SingleTurnEnv(dataset=ROWS).examples("eval")) == 3
    assert len(SingleTurnEnv(eval_dataset=ROWS).examples("train")) == 3
    assert [e.answer for e in both.examples("eval", n=1)] == ["4"]
    assert len(both.examples("eval", n=99)) == 2
    with pytest.raises(ConfigError, match="unknown split"):
        both.examples("test")


def test_the_caller_may_change_the_list_it_got():
    env = SingleTurnEnv(dataset=ROWS)
    env.examples("train").clear()
    assert len(env.examples("train")) == 3


def test_datasets_are_read_and_given_back():
    from datasets import Dataset

    env = SingleTurnEnv(dataset=Dataset.from_list(ROWS[:1]), system_prompt="S")
    assert env.examples("train") == SingleTurnEnv(dataset=ROWS[:1], system_prompt="S").examples(
        "train"
    )
    (row,) = env.get_dataset().to_list()
    assert row == {
        "question": "1+1?",
        "answer": "2",
        "task": "sum",
        "info": {"level": 1},
        "prompt": [system("S"), user("1+1?")],
        "example_id": 0,
    }


def test_a_seed_shuffles_a_copy():
    env = EchoEnvironment(num_examples=20)
    plain = env.get_dataset()["answer"][:]
    shuffled = env.get_dataset(seed=3)["answer"][:]
    assert sorted(shuffled) == sorted(plain)
    assert shuffled != plain
    assert env.get_dataset()["answer"][:] == plain
    assert env.get_eval_dataset(n=2)["answer"][:] == ["echo 0", "echo 1"]
    assert len(env.get_dataset(n=99)) == 20


def test_the_rubric_gets_the_parser():
    parser = ThinkParser()
    env = SingleTurnEnv(dataset=ROWS, parser=parser)
    assert env.rubric.parser is parser
    rubric = Rubric()
    assert SingleTurnEnv(dataset=ROWS, rubric=rubric).rubric is rubric


def test_a_question_is_formatted():
    env = SingleTurnEnv(dataset=ROWS)
    assert env.format_prompt("a") == [user("a")]
    assert env.format_prompt("a", "S", [assistant("b")]) == [system("S"), assistant("b"), user("a")]


def test_shots_are_the_first_examples_of_the_task():
    rows = [
        {"question": "a?", "answer": "A", "task": "x"},
        {"question": "b?", "answer": "B", "task": "y"},
        {"prompt": [user("first"), assistant("no"), user("c?")], "answer": "C", "task": "x"},
        {"question": "d?", "answer": "D", "task": "x"},
    ]
    env = SingleTurnEnv(dataset=rows, system_prompt="S")
    examples = env.examples("train")
    assert env.shots("x", 2, examples) == [user("a?"), assistant("A"), user("c?"), assistant("C")]
    assert env.shots("x", 1, examples[2:]) == [user("c?"), assistant("C")]
    assert env.shots("x", 0, examples) == []
    with pytest.raises(ConfigError, match="2 worked examples of task 'y' are wanted, there are 1"):
        env.shots("y", 2, examples)
    with pytest.raises(ConfigError, match="chat prompts"):
        env.shots("default", 1, [Example(0, "text")])
    with pytest.raises(ConfigError, match="example 3 has no user message"):
        env.shots("default", 1, [Example(3, [system("S")])])


def test_worked_examples_go_between_system_and_question():
    shots = [{"role": "user", "content": "echo x"}, {"role": "assistant", "content": "echo x"}]
    question = [{"role": "user", "content": "q"}]
    system = [{"role": "system", "content": "s"}]
    assert insert_shots(system + question, shots) == [*system, *shots, *question]
    assert insert_shots(question, shots) == [*shots, *question]
    assert insert_shots("text", []) == "text"
    with pytest.raises(ConfigError, match="chat prompts"):
        insert_shots("text", shots)


def test_a_chat_request_is_put_together():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    env = SingleTurnEnv(
        dataset=ROWS, sampling_args={"temperature": 1.0, "top_p": 0.9}, oai_tools=tools
    )
    client = FakeClient(["yes"])
    args = {"temperature": 0.5, "max_tokens": 8, "seed": None}
    response = respond(env, client, [user("a")], sampling_args=args)
    assert response.choices[0].message.content == "yes"
    (request,) = client.requests
    assert request == {
        "model": "m",
        "messages": [user("a")],
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 8,
        "tools": tools,
    }
    assert args == {"temperature": 0.5, "max_tokens": 8, "seed": None}


def test_a_text_request_is_put_together():
    env = SingleTurnEnv(dataset=[{"prompt": "Once"}], message_type="completion")
    client = FakeClient([" upon"])
    assert respond(env, client, "Once", sampling_args={"max_tokens": 8}).choices[0].text == " upon"
    assert client.requests == [{"model": "m", "prompt": "Once", "n": 1, "max_tokens": 8}]


def test_errors_of_the_client_propagate():
    env = SingleTurnEnv(dataset=ROWS)
    with pytest.raises(AuthError):
        respond(env, FakeClient([AuthError("no key")]), [user("a")])


def test_an_answer_without_a_choice_is_an_error():
    class Empty(FakeClient):
        async def _chat(self, **kwargs):
            response = await super()._chat(**kwargs)
            response.choices = []
            return response

    with pytest.raises(EmptyResponseError, match="'m' answered without a choice"):
        respond(SingleTurnEnv(dataset=ROWS), Empty(["x"]), [user("a")])
