import asyncio

import pytest

from vf_pipeline.errors import TrainingError
from vf_pipeline.training.groups import Group, StepGroups, choose, has_signal, is_flat
from vf_pipeline.training.trainer.grpo import assemble
from vf_pipeline.training.worker.order import fill_step, next_wave, prompt_at
from vf_pipeline.types import Failure, Rollout, Score, ScoredRollout, Turn


def group(position: int, good: bool, version: int = 0) -> Group:
    plays = [scored(0, 1.0, f"w@{version}"), scored(1, 0.0 if good else 1.0, f"w@{version}")]
    return Group.of(position, plays, 0, {"w"})


def fill(
    good: set[int], wanted: int, max_refill: int, start: int = 0
) -> tuple[StepGroups, list[int]]:
    asked: list[int] = []

    async def play(position: int) -> Group:
        asked.append(position)
        # Later ones finish first: the order must not depend on it.
        await asyncio.sleep(0.001 * (100 - position % 100))
        return group(position, position in good)

    return asyncio.run(fill_step(play, 7, start, wanted, max_refill)), asked


def test_a_full_first_wave_is_enough() -> None:
    played, asked = fill(set(range(100)), 4, 3, start=10)
    assert asked == [10, 11, 12, 13]
    assert (played.step, played.position) == (7, 14)


def test_flat_groups_are_replaced_by_the_next_prompts() -> None:
    played, asked = fill({0, 3, 4, 5, 6, 7}, 4, 4)
    chosen, stale = choose(played, 4, 1_000)
    assert [g.position for g in chosen] == [0, 3, 4, 5]
    assert [g.position for g in played.groups] == sorted(asked) == list(range(played.position))
    assert stale == 0


def test_refill_ends_at_its_limit() -> None:
    played, asked = fill(set(), 3, 2)
    assert len(asked) == 6 and played.position == 6
    assert choose(played, 3, 0) == ([], 0)


def test_waves_follow_the_share_of_good_ones() -> None:
    assert next_wave(missing=8, good=0, tried=0, wanted=8, limit=32) == 8
    # 7 of 8 were good: share (7 + 1) / (8 + 2), so 2 for the one that is missing.
    assert next_wave(missing=1, good=7, tried=8, wanted=8, limit=32) == 2
    assert next_wave(missing=7, good=1, tried=8, wanted=8, limit=32) == 8
    assert next_wave(missing=7, good=1, tried=30, wanted=8, limit=32) == 2
    assert next_wave(missing=0, good=8, tried=8, wanted=8, limit=32) == 0
    assert next_wave(missing=1, good=7, tried=32, wanted=8, limit=32) == 0


def test_stale_groups_are_dropped_whole() -> None:
    played = StepGroups(5, (group(0, True, 3), group(1, True, 4), group(2, True, 5)), 3)
    chosen, stale = choose(played, 3, 1)
    assert [g.position for g in chosen] == [1, 2]
    assert stale == 1


def test_the_order_is_a_shuffle_of_each_epoch() -> None:
    first = [prompt_at(1, position, 10) for position in range(10)]
    second = [prompt_at(1, position, 10) for position in range(10, 20)]
    assert sorted(index for _, index in first) == list(range(10))
    assert {epoch for epoch, _ in second} == {1}
    assert [i for _, i in first] != [i for _, i in second]
    assert first == [prompt_at(1, position, 10) for position in range(10)]
    assert first != [prompt_at(2, position, 10) for position in range(10)]


def scored(
    index: int, reward: float | None, weights: str = "w@3", error: Failure | None = None
) -> ScoredRollout:
    turn = Turn((1, 2), (3, 4), (-0.5, -1.0), "stop", weights)
    stop = "error" if error else "stop"
    play = Rollout(0, index, "d", "t", "p", "c", "a", stop, () if error else (turn,), error=error)  # type: ignore[arg-type]
    return ScoredRollout(play, Score(play.key, reward))


def test_a_group_knows_its_signal_its_failures_and_the_oldest_version() -> None:
    failure = Failure("environment", "ValueError", "bad")
    plays = [scored(0, 1.0), scored(1, 0.0, "w@2"), scored(2, None, error=failure)]
    made = Group.of(5, plays, 0, {"w"})
    assert made.has_signal
    assert made.version == 2
    assert made.rewards == [1.0, 0.0, None]
    assert (made.errors, made.completion_tokens, made.failure) == (1, 4, "ValueError: bad")


def test_the_trainer_makes_samples_with_advantages() -> None:
    failure = Failure("environment", "ValueError", "bad")
    plays = [scored(0, 1.0), scored(1, 0.0, "w@2"), scored(2, None, error=failure)]
    samples = assemble(Group.of(5, plays, 0, {"w"}), "none")
    assert [s.advantage for s in samples] == [0.5, -0.5]
    assert {s.group for s in samples} == {"d:5"}
    assert {s.version for s in samples} == {2}


def test_an_unscored_play_tells_why() -> None:
    play = scored(0, None)
    play = play._replace(score=Score(play.key, None, outcomes={"judge": "timeout", "other": "ok"}))
    assert Group.of(0, [play], 0, {"w"}).failure == "judge: timeout"


def test_a_flat_group_has_no_signal() -> None:
    assert not Group.of(5, [scored(0, 1.0), scored(1, 1.0)], 0, {"w"}).has_signal


def test_the_known_version_stands_in_for_a_silent_server() -> None:
    assert Group.of(5, [scored(0, 1.0, ""), scored(1, 0.0, "")], 9, {"w"}).version == 9


@pytest.mark.parametrize("weights", ["default", "v5", "5", "another@2"])
def test_weights_in_a_servers_own_words_are_those_that_the_worker_knows(weights: str) -> None:
    made = Group.of(5, [scored(0, 1.0, weights), scored(1, 0.0, "w@7")], 9, {"w"})
    assert made.version == 7
    assert Group.of(5, [scored(0, 1.0, weights)], 9, {"w"}).version == 9


def test_answers_without_token_ids_cannot_be_trained_on() -> None:
    bare = Rollout(0, 0, "d", "t", "p", "c", "a", "stop", (Turn((), (), (), "stop"),))
    plays = [ScoredRollout(bare, Score("k", reward)) for reward in (1.0, 0.0)]
    with pytest.raises(TrainingError, match="token ids"):
        assemble(Group.of(0, plays, 0, {"w"}), "none")


@pytest.mark.parametrize(
    ("rewards", "signal", "flat"),
    [
        ([0.0, 1.0], True, False),
        ([1.0, 1.0], False, True),
        ([1.0, 1.0 + 1e-7], False, True),
        ([1.0, None], False, False),
        ([1.0, float("nan"), 0.0], True, False),
        ([], False, False),
    ],
)
def test_signal_needs_two_rewards_that_differ(
    rewards: list[float | None], signal: bool, flat: bool
) -> None:
    assert (has_signal(rewards), is_flat(rewards)) == (signal, flat)
