"""Groups of rollouts on their way from the worker to the trainer: signal, staleness. No torch.

    worker: play a group ─► has_signal? ─no─► the next prompt instead
                                │yes
    trainer: choose ─► fresh enough? ─no─► dropped whole, counted
                                │yes
             samples ─► loss ─► weights

A group is a noun of both processes; what each does with it is in ``worker`` and ``trainer``.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from vf_pipeline.types import ScoredRollout, WeightVersion

SIGNAL_TOLERANCE = 1e-6
"""Rewards that differ by no more teach nothing: rounding would be amplified into a direction."""


@dataclass(frozen=True, slots=True)
class Group:
    """All plays of one prompt, at one position of the data order.

    ``version`` is the step of the weights that sampled them, the oldest where they differ.
    """

    position: int
    rollouts: tuple[ScoredRollout, ...]
    version: int

    @classmethod
    def of(
        cls,
        position: int,
        rollouts: Sequence[ScoredRollout],
        known_version: int,
        ours: Collection[str],
    ) -> "Group":
        """Return the plays of one prompt as a group.

        Args:
            position: place in the data order.
            rollouts: the plays.
            known_version: stands in where the server is silent, or names weights in words of its
                own: an engine that we gave weights to by other ways than ours.
            ours: digests whose steps are this training's: its own, and its first model's.
        """
        named = [
            WeightVersion.parse(turn.weights)
            for played in rollouts
            for turn in played.rollout.turns
        ]
        versions = [one.step if one.digest in ours else known_version for one in named]
        return cls(position, tuple(rollouts), min(versions, default=known_version))

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; None for a play that failed or could not be scored."""
        return [played.reward for played in self.rollouts]

    @property
    def has_signal(self) -> bool:
        """Whether the group teaches anything."""
        return has_signal(self.rewards)

    @property
    def errors(self) -> int:
        """How many plays have no reward."""
        return sum(reward is None for reward in self.rewards)

    @property
    def truncated(self) -> int:
        """How many plays a token limit cut."""
        return sum(played.rollout.truncated for played in self.rollouts)

    @property
    def completion_tokens(self) -> int:
        """How many tokens were sampled."""
        turns = [turn for played in self.rollouts for turn in played.rollout.turns]
        return sum(len(turn.completion_ids) for turn in turns)

    @property
    def failure(self) -> str:
        """Why the first play without a reward has none; empty when all have one."""
        for played in self.rollouts:
            error = played.rollout.error
            if error is not None:
                return f"{error.kind}: {error.message}"
        reasons = [
            f"{name}: {outcome}"
            for played in self.rollouts
            if played.reward is None
            for name, outcome in played.score.outcomes.items()
            if outcome != "ok"
        ]
        return reasons[0] if reasons else ""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """All groups that were tried for one optimizer step; the next step starts at ``position``."""

    step: int
    groups: tuple[Group, ...]
    position: int


@dataclass(slots=True)
class DataState:
    """What a checkpoint remembers of the data: where it goes on, and what was seen so far."""

    position: int = 0
    empty_in_a_row: int = 0
    tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Return whether rewards teach anything: two scored ones that differ by more than 1e-6."""
    scored = [reward for reward in rewards if is_scored(reward)]
    return len(scored) > 1 and max(scored) - min(scored) > SIGNAL_TOLERANCE


def is_flat(rewards: Sequence[float | None]) -> bool:
    """Return whether rewards were given, and all of them are the same."""
    scored = [reward for reward in rewards if is_scored(reward)]
    return len(scored) > 1 and not has_signal(rewards)


def is_scored(reward: float | None) -> TypeGuard[float]:
    """Return whether there is a reward, and a finite one."""
    return reward is not None and math.isfinite(reward)


def choose(played: StepGroups, wanted: int, max_staleness: int) -> tuple[list[Group], int]:
    """Return the groups to train on, in order, and how many were dropped as too old, whole."""
    useful = [group for group in played.groups if group.has_signal]
    fresh = [group for group in useful if played.step - group.version <= max_staleness]
    return fresh[:wanted], len(useful) - len(fresh)
