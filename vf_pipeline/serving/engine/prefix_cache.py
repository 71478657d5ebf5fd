"""Shared beginnings of prompts: which are worth computing once, and a small store of them."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

MINIMUM = 8
"""Fewest tokens for which a shared prefix is kept apart."""
WORTH = 64
"""Fewest tokens that a prefix must save: a pass of its own reads all weights for a few tokens."""

Ids = tuple[int, ...]
T = TypeVar("T")


def shared_prefixes(
    waiting: Sequence[Ids], recent: Sequence[Ids] = (), worth: int = WORTH
) -> list[Ids]:
    """Return the prefixes that at least two prompts share, shorter before longer.

    A prefix is listed when it adds ``MINIMUM`` tokens to the one before it, when a waiting prompt
    runs through it, and when it saves ``worth`` tokens: those it adds, for each prompt but one. It
    never holds a waiting prompt whole: the last token is always computed, for its logits.
    """
    prefixes: list[Ids] = []
    pending = [(list(waiting), list(recent), 0)]
    while pending:
        here, seen, base = pending.pop()
        if not here or len(here) + len(seen) < 2:
            continue
        depth = min(_common([*here, *seen]), min(len(p) for p in here) - 1)
        added = depth - base
        if added >= MINIMUM and added * (len(here) + len(seen) - 1) >= worth:
            prefixes.append(here[0][:depth])
            base = depth
        branches: dict[int, tuple[list[Ids], list[Ids]]] = {}
        for side, prompts in enumerate((here, seen)):
            for prompt in prompts:
                if len(prompt) > depth + (side == 0):
                    branches.setdefault(prompt[depth], ([], []))[side].append(prompt)
        pending += [(a, b, base) for a, b in branches.values()]
    return sorted(prefixes, key=len)


def _common(prompts: Sequence[Ids]) -> int:
    low, high = min(prompts), max(prompts)
    for place, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return place
    return min(len(low), len(high))


class PrefixCache(Generic[T]):
    """The prefixes used last, by their ids, within a budget in bytes; knows recent prompts too."""

    def __init__(self, budget_bytes: int, bytes_per_token: int, recent: int = 64) -> None:
        self._budget = budget_bytes
        self._per_token = bytes_per_token
        self._prefixes: OrderedDict[Ids, T] = OrderedDict()
        self.recent: deque[Ids] = deque(maxlen=recent)

    def __len__(self) -> int:
        return len(self._prefixes)

    def longest(self, prompt: Ids, limit: int) -> tuple[Ids, T] | None:
        """Return the longest prefix of at most ``limit`` tokens that the prompt begins with."""
        best: Ids = ()
        for prefix in self._prefixes:
            if len(best) < len(prefix) <= limit and prompt[: len(prefix)] == prefix:
                best = prefix
        if not best:
            return None
        self._prefixes.move_to_end(best)
        return best, self._prefixes[best]

    def add(self, prefix: Ids, value: T) -> None:
        """Keep a prefix; those used longest ago make room."""
        self._prefixes[prefix] = value
        used = sum(len(kept) for kept in self._prefixes) * self._per_token
        while used > self._budget and self._prefixes:
            dropped, _ = self._prefixes.popitem(last=False)
            used -= len(dropped) * self._per_token

    def clear(self) -> None:
        """Forget all prefixes: their keys belong to other weights."""
        self._prefixes.clear()
