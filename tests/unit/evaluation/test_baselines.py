"""Which promptings the trained model is compared with, and what they play."""

import pytest

from vf_pipeline.configs import BaselineSettings, EvalSettings
from vf_pipeline.errors import ConfigError
from vf_pipeline.evaluation.baselines import (
    Prompting,
    plain_prompting,
    prompted_baselines,
    with_shots,
)
from vf_pipeline.testing import EchoEnvironment


def settings(max_tokens: int, *baselines: tuple[int, int]) -> EvalSettings:
    asked = tuple(BaselineSettings(shots=shots, max_tokens=most) for shots, most in baselines)
    return EvalSettings(max_tokens=max_tokens, baselines=asked)


def test_a_budget_below_the_plain_one_is_raised_and_nothing_is_measured_twice() -> None:
    asked = settings(16, (0, 8), (0, 16), (3, 0), (3, 12), (8, 64))
    assert plain_prompting(asked) == Prompting(0, 16)
    assert prompted_baselines(asked) == [Prompting(3, 16), Prompting(8, 64)]
    assert prompted_baselines(settings(16)) == []


def test_the_defaults_are_a_longer_budget_and_few_shot() -> None:
    labels = [prompting.label for prompting in prompted_baselines(EvalSettings())]
    assert labels == ["zero-shot, 64 tokens", "3-shot, 64 tokens", "8-shot, 64 tokens"]


def test_a_label_is_a_folder_as_well() -> None:
    assert (Prompting(0, 1).label, Prompting(0, 1).slug) == (
        "zero-shot, 1 token",
        "zero-shot-1-token",
    )
    assert Prompting(8, 64).slug == "8-shot-64-tokens"


def test_examples_with_shots_keep_their_digests() -> None:
    env = EchoEnvironment(num_examples=6, system_prompt="Repeat.")
    source, held_out = env.examples("train")[:3], env.examples("train")[3:]
    played = with_shots(env, held_out, 2, source)
    assert [example.digest for example in played] == [example.digest for example in held_out]
    assert [message["content"] for message in played[0].prompt] == [
        "Repeat.",
        *("echo 0", "echo 0", "echo 1", "echo 1"),
        "echo 3",
    ]
    assert with_shots(env, held_out, 0, source) == held_out


def test_too_few_worked_examples_are_an_error() -> None:
    env = EchoEnvironment(num_examples=4)
    examples = env.examples("train")
    with pytest.raises(ConfigError, match="8 worked examples of task 'echo' are wanted"):
        with_shots(env, examples[3:], 8, examples[:3])
