"""A small store of shared prefixes, and of what was computed for them."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from vf_pipeline.tokens.prefixes import Ids

T = TypeVar("T")


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
