"""Splits that share no example, and depend on nothing but contents, sizes and seed."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vf_pipeline.environments.rows import content_digest
from vf_pipeline.errors import ConfigError
from vf_pipeline.types import Example


def split_examples(
    examples: Sequence[Example], sizes: Mapping[str, int], seed: int
) -> dict[str, list[Example]]:
    """Return disjoint parts of the given sizes; each has the dataset's mixture of tasks.

    Equal examples count once. The order of ``examples`` does not matter: a part holds the same
    examples in the same order for every permutation.

    Args:
        examples: the dataset.
        sizes: number of examples of each part; filled in this order.
        seed: which of the possible splits.

    Raises:
        ConfigError: there are too few different examples, or a size is negative.

    Example:
        >>> import vf_pipeline as vf
        >>> rows = [{"question": f"{i} + {i}", "answer": str(2 * i)} for i in range(10)]
        >>> examples = vf.SingleTurnEnv(dataset=rows).examples("train")
        >>> parts = vf.split_examples(examples, {"eval": 3, "train": 6}, seed=0)
        >>> {name: len(part) for name, part in parts.items()}
        {'eval': 3, 'train': 6}
        >>> parts == vf.split_examples(examples[::-1], {"eval": 3, "train": 6}, seed=0)
        True
    """
    for name, size in sizes.items():
        if size < 0:
            raise ConfigError(f"part {name!r} has {size} examples", "give 0 or more")
    ordered = _mixed(_distinct(examples), seed)
    wanted = sum(sizes.values())
    if wanted > len(ordered):
        listing = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"the parts need {wanted} different examples ({listing}), "
            f"the dataset has {len(ordered)}",
            "lower the sizes under [data], or load more examples",
        )
    parts: dict[str, list[Example]] = {}
    start = 0
    # Stretches of one order that knows no sizes: a larger part leaves those before it as they were.
    for name, size in sizes.items():
        parts[name] = ordered[start : start + size]
        start += size
    return parts


def _distinct(examples: Sequence[Example]) -> dict[str, Example]:
    found: dict[str, Example] = {}
    for e in examples:
        digest = e.digest or content_digest(e.prompt, e.answer, e.task, e.info)
        # The smallest number, not the first to come: the order of the dataset must not matter.
        if digest not in found or e.example_id < found[digest].example_id:
            found[digest] = e
    return found


def _mixed(distinct: Mapping[str, Example], seed: int) -> list[Example]:
    # Within a task the order is that of a keyed hash. The i-th of a task's n examples then stands
    # at (i + 1/2) / n, so that every stretch of the whole holds the tasks in their proportions.
    tasks: dict[str, list[str]] = defaultdict(list)
    for digest, example in distinct.items():
        tasks[example.task].append(digest)
    placed: list[tuple[float, str, Example]] = []
    for digests in tasks.values():
        ranked = sorted((_rank(digest, seed), digest) for digest in digests)
        for i, (rank, digest) in enumerate(ranked):
            placed.append(((i + 0.5) / len(ranked), rank, distinct[digest]))
    return [example for _, _, example in sorted(placed, key=lambda item: item[:2])]


def _rank(digest: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{digest}".encode()).hexdigest()
