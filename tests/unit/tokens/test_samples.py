"""From rollouts to training samples."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from vf_pipeline.tokens.samples import samples_from_group
from vf_pipeline.types import Failure, Rollout, Score, TrainSample, Turn

GOOD = Turn((1, 2), (3, 4), (-0.1, -0.2), "stop")


def pair(*turns: Turn, reward: float | None = 1.0) -> tuple[Rollout, Score]:
    rollout = Rollout(0, 0, "d", "t", [], [], "", "stop", turns)
    return rollout, Score(rollout.key, reward)


def test_each_turn_becomes_a_sample() -> None:
    cut = replace(GOOD, prompt_ids=(1, 2, 3, 4, 5), finish_reason="length")
    samples = samples_from_group("g", [pair(GOOD, cut), pair(GOOD, reward=0.0)], [0.5, -0.5], 3)
    assert samples == [
        TrainSample("g", (1, 2), (3, 4), (-0.1, -0.2), 1.0, 0.5, 3),
        TrainSample("g", (1, 2, 3, 4, 5), (3, 4), (-0.1, -0.2), 1.0, 0.5, 3, truncated=True),
        TrainSample("g", (1, 2), (3, 4), (-0.1, -0.2), 0.0, -0.5, 3),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_ids": ()}, "empty prompt"),
        ({"completion_ids": (), "logprobs": ()}, "empty completion"),
        ({"logprobs": (-0.1,)}, "logprobs of another length"),
        ({"logprobs": (-0.1, math.nan)}, "logprob not finite"),
        ({"logprobs": (-0.1, -math.inf)}, "logprob not finite"),
        ({"logprobs": (-0.1, 0.5)}, "logprob above zero"),
        ({"completion_ids": (3, -1)}, "negative token id"),
    ],
)
def test_a_turn_that_breaks_an_invariant_is_left_out_and_counted(
    changes: dict[str, object], reason: str
) -> None:
    dropped: Counter[str] = Counter()
    bad = replace(GOOD, **changes)  # type: ignore[arg-type]
    samples = samples_from_group("g", [pair(bad), pair(GOOD)], [1.0, -1.0], 0, dropped)
    assert [sample.advantage for sample in samples] == [-1.0]
    assert dropped == {reason: 1}


def test_rollouts_without_a_lesson_are_left_out_and_counted() -> None:
    failed, score = pair(GOOD)
    failed = replace(failed, error=Failure("provider", "X", "x"))
    pairs = [(failed, score), pair(GOOD, reward=None), pair(), pair(GOOD, reward=math.nan)]
    dropped: Counter[str] = Counter(error=1)
    assert samples_from_group("g", pairs, [0.0] * 4, 0, dropped) == []
    assert dropped == {
        "error": 2, "unscored": 1, "no tokens": 1, "reward or advantage not finite": 1
    }  # fmt: skip


def test_advantages_must_match() -> None:
    with pytest.raises(ValueError):
        samples_from_group("g", [pair(GOOD)], [], 0)
