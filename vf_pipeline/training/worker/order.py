"""Which prompts are played next: the endless data order, and refilling a step. Pure, no I/O.

Which prompt comes at which position is a function of the seed alone, so the position of the next
prompt is all that has to be remembered. Groups without a signal are replaced by the next ones.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from functools import lru_cache

from vf_pipeline.training.groups import Group, StepGroups

Play = Callable[[int], Awaitable[Group]]
"""Plays the group at one position of the data order."""


def prompt_at(seed: int, position: int, count: int) -> tuple[int, int]:
    """Return the epoch and the index of the example at a position of the endless data order."""
    epoch, place = divmod(position, count)
    return epoch, _order(seed, epoch, count)[place]


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
        good = sum(group.has_signal for group in tried)
        size = next_wave(wanted - good, good, len(tried), wanted, limit)
        if size == 0:
            return StepGroups(step, tuple(tried), position + len(tried))
        start = position + len(tried)
        # In the order of positions, not of completion: which groups a step gets must not depend on
        # which is played faster.
        tried += await asyncio.gather(*(play(start + offset) for offset in range(size)))


def next_wave(missing: int, good: int, tried: int, wanted: int, limit: int) -> int:
    """Return how many groups to play next: as many as the share of good ones so far suggests."""
    if missing <= 0 or tried >= limit:
        return 0
    # Laplace's rule: with few groups tried, neither none nor all of them good is taken at its word,
    # so that the share is never 0. The first wave is what a step needs if all are good.
    share = (good + 1) / (tried + 2) if tried else 1.0
    return min(math.ceil(missing / share), wanted, limit - tried)


# Two: at the border of an epoch, one step asks for positions of both.
@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
