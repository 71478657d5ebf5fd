"""Evaluations from end to end on a fake client: numbers, resuming, and failures."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from vf_pipeline.configs import EvalSettings, InferenceSettings
from vf_pipeline.errors import (
    ConfigError,
    EnvironmentFault,
    JournalError,
    ProviderError,
    RubricError,
)
from vf_pipeline.evaluation.evaluate import evaluate, metrics_of
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.rollouts.generate import run_async
from vf_pipeline.rubrics import Rubric
from vf_pipeline.testing import EchoEnvironment, FakeClient
from vf_pipeline.tracking import JsonlTracker
from vf_pipeline.types import EvalResult

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "fake")


def measure(
    folder: Path,
    replies: Any,
    *,
    env: EchoEnvironment | None = None,
    rollouts: int = 1,
    allowed: float = 0.05,
    **kwargs: Any,
) -> EvalResult:
    env = env or EchoEnvironment(num_examples=8)
    settings = EvalSettings(
        rollouts_per_example=rollouts, max_error_fraction=allowed, max_concurrent=4
    )
    return evaluate(
        env,
        kwargs.pop("examples", env.examples("eval")),
        ENDPOINT,
        model_name="fake",
        settings=settings,
        inference=InferenceSettings(),
        seed=0,
        folder=folder,
        journal_settings=kwargs.pop("journal_settings", {"model": "fake"}),
        client=kwargs.pop("client", None) or FakeClient(replies),
        **kwargs,
    )


def question(prompt: Any) -> str:
    return str(prompt[-1]["content"])


def echo_even(prompt: Any) -> str:
    text = question(prompt)
    return text if int(text.split()[-1]) % 2 == 0 else "wrong"


def broken_for(numbers: set[int], error: Exception) -> Any:
    def reply(prompt: Any) -> str:
        if int(question(prompt).split()[-1]) in numbers:
            raise error
        return question(prompt)

    return reply


def test_evaluate_says_how_good_and_how_sure(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    result = measure(tmp_path / "run", echo_even, rollouts=2, tracker=tracker)
    assert (result.env, result.model) == ("echo", "fake")
    assert (result.reward.mean, result.reward.n) == (0.5, 8)
    # 0/1 over 8 examples: SE = sqrt(0.25 / 7); two plays of an example are not two examples.
    assert result.reward.se == pytest.approx(math.sqrt(0.25 / 7))
    assert result.per_task == {"echo": result.reward}
    assert result.counts == {
        "examples": 8, "rollouts": 16, "scored": 16, "errors": 0, "unscored": 0, "truncated": 0,
    }  # fmt: skip
    assert result.metrics["pass_at/2"] == 0.5
    assert result.usage.completion_tokens == 8 * 2 + 8 * 1
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["reward"]["mean"] == 0.5
    lines = [json.loads(line) for line in tracker.path.read_text().splitlines()]
    assert lines[0]["values"]["reward/mean"] == 0.5
    assert lines[0]["values"]["reward/echo"] == 0.5
    assert lines[1]["path"].endswith("result.json")


def test_sampling_is_that_of_the_settings_or_the_one_given(tmp_path: Path) -> None:
    client = FakeClient(echo_even)
    measure(tmp_path / "a", None, client=client)
    assert client.requests[0]["temperature"] == 0.0
    assert client.requests[0]["max_completion_tokens"] == 8
    client = FakeClient(echo_even)
    measure(tmp_path / "b", None, client=client, sampling={"top_p": 0.5})
    assert client.requests[0]["top_p"] == 0.5
    assert "temperature" not in client.requests[0]


def test_the_same_command_resumes_and_changes_no_number(tmp_path: Path) -> None:
    env = EchoEnvironment(num_examples=8)
    whole = measure(tmp_path / "whole", echo_even, env=env)
    client = FakeClient(echo_even)
    measure(tmp_path / "parts", None, client=client, examples=env.examples("eval")[:3])
    result = measure(tmp_path / "parts", None, client=client)
    assert len(client.requests) == 8
    assert (result.reward, result.counts, result.usage) == (
        whole.reward, whole.counts, whole.usage,
    )  # fmt: skip
    measure(tmp_path / "parts", None, client=client, fresh=True)
    assert len(client.requests) == 16


def test_changed_settings_are_refused(tmp_path: Path) -> None:
    measure(tmp_path, echo_even)
    with pytest.raises(JournalError):
        measure(tmp_path, echo_even, journal_settings={"model": "another"})


def test_failures_are_counted_and_enter_no_mean(tmp_path: Path) -> None:
    replies = broken_for({3}, ProviderError("the server burns"))
    result = measure(tmp_path, replies, allowed=0.2)
    assert (result.reward.mean, result.reward.n) == (1.0, 7)
    assert result.counts["errors"] == result.counts["errors/provider"] == 1
    assert metrics_of(result)["rollouts/error_frac"] == 0.125


def test_too_many_failures_fail_by_their_boundary_and_keep_the_rest(tmp_path: Path) -> None:
    replies = broken_for({1, 3}, ProviderError("the server burns"))
    with pytest.raises(ProviderError, match=r"2 of 8 rollouts failed \(25\.0 %.*burns"):
        measure(tmp_path, replies)
    assert json.loads((tmp_path / "result.json").read_text())["counts"]["scored"] == 6
    # What failed is played again, what succeeded is not.
    client = FakeClient(echo_even)
    assert measure(tmp_path, None, client=client).counts["errors"] == 0
    assert len(client.requests) == 2
    with pytest.raises(EnvironmentFault, match="'x'"):
        measure(tmp_path / "env", broken_for({1}, KeyError("x")))


def test_unscored_rollouts_fail_as_the_rubrics(tmp_path: Path) -> None:
    def score(completion: Any) -> float:
        raise ValueError("no such answer")

    env = EchoEnvironment(num_examples=4, rubric=Rubric([score]))
    with pytest.raises(RubricError, match="no such answer"):
        measure(tmp_path, echo_even, env=env)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["counts"]["unscored"] == 4
    assert written["reward"]["mean"] is None


def test_a_run_without_any_success_stops_early(tmp_path: Path) -> None:
    env = EchoEnvironment(num_examples=300)
    client = FakeClient(broken_for(set(range(300)), RuntimeError("bug in a reply")))
    with pytest.raises(EnvironmentFault, match=r"first 2[0-9] rollouts all failed.*bug in a reply"):
        measure(tmp_path, None, client=client, env=env)
    assert len(client.requests) < 40


def test_no_examples_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no examples"):
        measure(tmp_path, echo_even, examples=[])


async def test_evaluate_works_inside_a_running_loop(tmp_path: Path) -> None:
    assert measure(tmp_path, echo_even).reward.mean == 0.5

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("inner")

    with pytest.raises(KeyError, match="inner"):
        run_async(fail())
