"""Shared beginnings of prompts: which are worth computing once, and a small store of them."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

MINIMUM = 8
"""Fewest tokens for which a shared stem is kept apart."""
WORTH = 64
"""Fewest tokens that a stem must save: a pass of its own reads all weights for a few tokens."""

Ids = tuple[int, ...]
T = TypeVar("T")


def shared_stems(
    waiting: Sequence[Ids], recent: Sequence[Ids] = (), worth: int = WORTH
) -> list[Ids]:
    """Return the stems that at least two prompts share, shorter before longer.

    A stem is listed when it adds ``MINIMUM`` tokens to the one before it, when a waiting prompt
    runs through it, and when it saves ``worth`` tokens: those it adds, for each prompt but one. It
    never holds a waiting prompt whole: the last token is always computed, for its logits.
    """
    stems: list[Ids] = []
    pending = [(list(waiting), list(recent), 0)]
    while pending:
        here, seen, base = pending.pop()
        if not here or len(here) + len(seen) < 2:
            continue
        depth = min(_common([*here, *seen]), min(len(p) for p in here) - 1)
        added = depth - base
        if added >= MINIMUM and added * (len(here) + len(seen) - 1) >= worth:
            stems.append(here[0][:depth])
            base = depth
        branches: dict[int, tuple[list[Ids], list[Ids]]] = {}
        for side, prompts in enumerate((here, seen)):
            for prompt in prompts:
                if len(prompt) > depth + (side == 0):
                    branches.setdefault(prompt[depth], ([], []))[side].append(prompt)
        pending += [(a, b, base) for a, b in branches.values()]
    return sorted(stems, key=len)


def _common(prompts: Sequence[Ids]) -> int:
    low, high = min(prompts), max(prompts)
    for place, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return place
    return min(len(low), len(high))


class StemStore(Generic[T]):
    """The stems used last, by their ids, within a budget in bytes; remembers recent prompts too."""

    def __init__(self, budget_bytes: int, bytes_per_token: int, recent: int = 64) -> None:
        self._budget = budget_bytes
        self._per_token = bytes_per_token
        self._stems: OrderedDict[Ids, T] = OrderedDict()
        self.recent: deque[Ids] = deque(maxlen=recent)

    def __len__(self) -> int:
        return len(self._stems)

    def longest(self, prompt: Ids, limit: int) -> tuple[Ids, T] | None:
        """Return the longest stem of at most ``limit`` tokens that the prompt begins with."""
        best: Ids = ()
        for stem in self._stems:
            if len(best) < len(stem) <= limit and prompt[: len(stem)] == stem:
                best = stem
        if not best:
            return None
        self._stems.move_to_end(best)
        return best, self._stems[best]

    def add(self, stem: Ids, value: T) -> None:
        """Keep a stem; those used longest ago make room."""
        self._stems[stem] = value
        used = sum(len(kept) for kept in self._stems) * self._per_token
        while used > self._budget and self._stems:
            dropped, _ = self._stems.popitem(last=False)
            used -= len(dropped) * self._per_token

    def clear(self) -> None:
        """Forget all stems: their keys belong to other weights."""
        self._stems.clear()
