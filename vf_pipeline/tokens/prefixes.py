"""Shared beginnings of token sequences: how long they are, and which are worth computing once.

The engine computes them once for its prompts, the trainer once for a batch. Pure: no torch.
"""

from collections.abc import Sequence

MINIMUM = 8
"""Fewest tokens for which a shared prefix is kept apart."""
WORTH = 64
"""Fewest tokens that a prefix must save: a pass of its own reads all weights for a few tokens."""

Ids = tuple[int, ...]


def common_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many leading tokens all sequences share.

    >>> common_prefix_length([(1, 2, 3), (1, 2, 4)])
    2

    Raises:
        ValueError: there is no sequence.
    """
    # Whatever the first and the last in lexical order share, those between them share as well.
    rows = [tuple(sequence) for sequence in sequences]
    low, high = min(rows), max(rows)
    for place, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return place
    return min(len(low), len(high))


def shared_prefixes(
    waiting: Sequence[Ids],
    recent: Sequence[Ids] = (),
    worth: int = WORTH,
    minimum: int = MINIMUM,
) -> list[Ids]:
    """Return the prefixes that at least two prompts share, shorter before longer.

    A prefix is listed when it adds ``minimum`` tokens to the one before it, when a waiting prompt
    runs through it, and when it saves ``worth`` tokens: those it adds, for each prompt but one. It
    never holds a waiting prompt whole: the last token is always computed, for its logits.

    Args:
        waiting: prompts that are computed now.
        recent: prompts that were computed before, and whose like may come again.
        worth: fewest tokens that a prefix must save.
        minimum: fewest tokens that a prefix adds to a shorter one.
    """
    prefixes: list[Ids] = []
    # A stack and no recursion: a branch can be as deep as the prompts are long.
    pending = [(list(waiting), list(recent), 0)]
    while pending:
        here, seen, base = pending.pop()
        if not here or len(here) + len(seen) < 2:
            continue
        depth = min(common_prefix_length([*here, *seen]), min(len(p) for p in here) - 1)
        added = depth - base
        if added >= minimum and added * (len(here) + len(seen) - 1) >= worth:
            # base stays where nothing was listed: tokens that were too few count towards the next.
            prefixes.append(here[0][:depth])
            base = depth
        branches: dict[int, tuple[list[Ids], list[Ids]]] = {}
        for side, prompts in enumerate((here, seen)):
            for prompt in prompts:
                # A waiting prompt must have a token left behind any longer prefix; one computed
                # before may end with it.
                if len(prompt) > depth + (side == 0):
                    branches.setdefault(prompt[depth], ([], []))[side].append(prompt)
        pending += [(a, b, base) for a, b in branches.values()]
    return sorted(prefixes, key=len)
