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
        # Bounded, for every new batch is compared with all of them.
        self.recent: deque[Ids] = deque(maxlen=recent)

    def __len__(self) -> int:
        return len(self._prefixes)

    def longest(self, prompt: Ids, limit: int) -> tuple[Ids, T] | None:
        """Return the longest prefix of at most ``limit`` tokens that the prompt begins with."""
        # A scan, for there are few: an eighth of 1 GB holds about 2900 tokens of a 135M model in
        # fp32, and prefixes are kept only where they save 64.
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
        # Each keeps all its tokens, also those of a shorter prefix: putting one into a row is then
        # a single copy.
        used = sum(len(kept) for kept in self._prefixes) * self._per_token
        while used > self._budget and self._prefixes:
            dropped, _ = self._prefixes.popitem(last=False)
            used -= len(dropped) * self._per_token

    def clear(self) -> None:
        """Forget all prefixes: their keys belong to other weights."""
        # Recent prompts stay: what they have in common does not depend on weights.
        self._prefixes.clear()
