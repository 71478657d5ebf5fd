"""Groups of rollouts on their way to the trainer: order, refill, staleness. No torch, no I/O.

Which prompt comes at which position is a function of the seed alone, so the position of the next
prompt is all that has to be remembered. Groups without a signal are replaced by the next ones.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from vf_pipeline.errors import TrainingError
from vf_pipeline.tokens.samples import samples_from_group
from vf_pipeline.training.trainer.advantages import group_advantages, has_signal
from vf_pipeline.types import Rollout, Score, TrainSample

Play = Callable[[int], Awaitable["Group"]]
"""Plays the group at one position of the data order."""


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt. ``samples`` is empty when they teach nothing.

    ``version`` is the weights' version that sampled them, the oldest where they differ.
    """

    position: int
    samples: tuple[TrainSample, ...]
    rewards: tuple[float | None, ...]
    version: int
    errors: int = 0
    truncated: int = 0
    completion_tokens: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """All groups that were tried for one optimizer step; the next step starts at ``position``."""

    step: int
    groups: tuple[Group, ...]
    position: int


@dataclass(slots=True)
class BufferState:
    """What a checkpoint remembers of the data: where it goes on, and what was seen so far."""

    position: int = 0
    empty_in_a_row: int = 0
    tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)


def prompt_at(seed: int, position: int, count: int) -> tuple[int, int]:
    """Return the epoch and the index of the example at a position of the endless data order."""
    epoch, place = divmod(position, count)
    return epoch, _order(seed, epoch, count)[place]


def make_group(
    pairs: Sequence[tuple[Rollout, Score]],
    position: int,
    version: int,
    scale: Literal["none", "group"],
) -> Group:
    """Return the rollouts of one prompt as a group.

    Args:
        pairs: the rollouts and their scores.
        position: place in the data order.
        version: version of the weights, where the server does not say it.
        scale: how advantages are scaled.

    Raises:
        TrainingError: the rollouts carry no token ids, so they cannot be trained on.
    """
    rewards = tuple(None if rollout.error else score.reward for rollout, score in pairs)
    versions = [_version(turn.weights, version) for rollout, _ in pairs for turn in rollout.turns]
    oldest = min(versions, default=version)
    samples: list[TrainSample] = []
    if has_signal(rewards):
        advantages = [a or 0.0 for a in group_advantages(rewards, scale)]
        name = f"{pairs[0][0].example_digest}:{position}"
        samples = samples_from_group(name, pairs, advantages, oldest)
        if not samples:
            raise TrainingError(
                "the server's answers carry no usable token ids, so nothing can be trained on",
                "use vf-serve, or another server that answers return_token_ids and logprobs",
            )
    failure = next((rollout.error for rollout, _ in pairs if rollout.error), None)
    return Group(
        position,
        tuple(samples),
        rewards,
        oldest,
        errors=sum(reward is None for reward in rewards),
        truncated=sum(rollout.truncated for rollout, _ in pairs),
        completion_tokens=sum(len(t.completion_ids) for r, _ in pairs for t in r.turns),
        failure=f"{failure.kind}: {failure.message}" if failure else _unscored(pairs),
    )


async def fill_step(
    play: Play, step: int, position: int, wanted: int, max_refill: int
) -> StepGroups:
    """Return the groups of one step: tried in order until enough of them have a signal.

    Args:
        play: plays the group at a position.
        step: the optimizer step.
        position: where the step starts.
        wanted: groups with a signal that the step needs.
        max_refill: most groups tried, as a multiple of ``wanted``.
    """
    tried: list[Group] = []
    limit = wanted * max_refill
    while True:
        good = sum(bool(group.samples) for group in tried)
        size = next_wave(wanted - good, good, len(tried), wanted, limit)
        if size == 0:
            return StepGroups(step, tuple(tried), position + len(tried))
        start = position + len(tried)
        tried += await asyncio.gather(*(play(start + offset) for offset in range(size)))


def next_wave(missing: int, good: int, tried: int, wanted: int, limit: int) -> int:
    """Return how many groups to play next: as many as the share of good ones so far suggests."""
    if missing <= 0 or tried >= limit:
        return 0
    share = (good + 1) / (tried + 2) if tried else 1.0
    return min(math.ceil(missing / share), wanted, limit - tried)


def choose(played: StepGroups, wanted: int, max_staleness: int) -> tuple[list[Group], int]:
    """Return the groups to train on, in order, and how many were dropped as too old, whole."""
    useful = [group for group in played.groups if group.samples]
    fresh = [group for group in useful if played.step - group.version <= max_staleness]
    return fresh[:wanted], len(useful) - len(fresh)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def _version(text: str, default: int) -> int:
    return int(text) if text.isdecimal() else default


def _unscored(pairs: Sequence[tuple[Rollout, Score]]) -> str:
    reasons = [
        f"{name}: {outcome}"
        for _, score in pairs
        if score.reward is None
        for name, outcome in score.outcomes.items()
        if outcome != "ok"
    ]
    return reasons[0] if reasons else ""
