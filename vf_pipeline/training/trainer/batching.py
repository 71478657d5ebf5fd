"""Rows of tokens, and how one optimizer step is cut into micro-batches by a token budget.

A row is a prefix and a suffix. Rows that share a prefix (the completions of one prompt; the rows
of an SFT batch, behind what their prompts share) share its forward pass. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: ``prefix`` and ``suffix`` are ids, both with at least one.

    The first ``skip`` tokens of the suffix carry no loss. ``index`` finds the row's sample again.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    index: int
    skip: int = 0

    @property
    def loss_tokens(self) -> int:
        """How many tokens carry loss."""
        return len(self.suffix) - self.skip


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward pass. ``prefix_of[i]`` is the position of row i's prefix."""

    prefixes: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    prefix_of: tuple[int, ...]

    @property
    def padded_tokens(self) -> int:
        """Tokens of the forward pass, padding included."""
        return _cost([len(p) for p in self.prefixes], [len(row.suffix) for row in self.rows])


def pack(rows: Sequence[Row], budget: int) -> list[MicroBatch]:
    """Return the rows in micro-batches of at most ``budget`` padded tokens each.

    Rows are ordered by prefix and length, so that prefixes are shared and padding is small. A row
    that exceeds the budget alone gets a micro-batch alone; a prefix whose rows do not fit together
    is forwarded again for each part.
    """
    ordered = sorted(
        rows, key=lambda row: (len(row.prefix), row.prefix, len(row.suffix), row.index)
    )
    batches: list[MicroBatch] = []
    current: list[Row] = []
    prefixes: set[tuple[int, ...]] = set()
    widest = suffix = 0
    for row in ordered:
        many = len(prefixes | {row.prefix})
        wide = max(widest, len(row.prefix))
        long = max(suffix, len(row.suffix))
        if current and many * wide + (len(current) + 1) * long > budget:
            batches.append(_micro_batch(current))
            current, prefixes = [], set()
            wide, long = len(row.prefix), len(row.suffix)
        current.append(row)
        prefixes.add(row.prefix)
        widest, suffix = wide, long
    if current:
        batches.append(_micro_batch(current))
    return batches


def _micro_batch(rows: list[Row]) -> MicroBatch:
    places: dict[tuple[int, ...], int] = {}
    prefix_of = [places.setdefault(row.prefix, len(places)) for row in rows]
    return MicroBatch(tuple(places), tuple(rows), tuple(prefix_of))


def _cost(prefixes: list[int], suffixes: list[int]) -> int:
    return len(prefixes) * max(prefixes) + len(suffixes) * max(suffixes)
