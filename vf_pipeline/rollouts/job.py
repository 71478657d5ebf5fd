"""What is to be played: one job a rollout, and the seeds that follow from it.

A seed depends on the run's, on the example's content and on the play's index alone, so that the
order of arrival and what else runs have no part in what is sampled.
"""

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vf_pipeline.types import Example, SamplingArgs, rollout_key


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """One rollout that is to be played: what the runner is handed.

    ``seed`` is that of the example's group; the rollout's own requests derive theirs from it.
    """

    example: Example
    index: int
    model: str
    sampling: SamplingArgs
    seed: int

    @property
    def key(self) -> str:
        """The identity of this play within its journal."""
        return rollout_key(self.example.digest, self.example.example_id, self.index)

    def input(self) -> dict[str, Any]:
        """Return what the environment is given: copies, for environments change what they get."""
        example = self.example
        return {
            "prompt": copy.deepcopy(example.prompt),
            "answer": example.answer,
            "task": example.task,
            "info": copy.deepcopy(example.info),
            "example_id": example.example_id,
        }


def group_jobs(
    example: Example,
    model: str,
    sampling: SamplingArgs,
    seed: int,
    indices: Iterable[int],
) -> list[RolloutJob]:
    """Return the jobs of one example.

    Args:
        example: what is played.
        model: name of the model at the server.
        sampling: sampling arguments; a seed among them takes the place of ``seed``.
        seed: seed of the run.
        indices: which plays of the example.
    """
    # Taken out of the arguments: passed on as it is, one seed would make all plays of a group
    # alike.
    own = {key: value for key, value in sampling.items() if key != "seed"}
    given = sampling.get("seed")
    group_seed = derive_seed(seed if given is None else int(given), example.digest)
    return [RolloutJob(example, index, model, own, group_seed) for index in indices]


def first_turn_seed(jobs: Sequence[RolloutJob], whole: bool) -> int:
    """Return the seed of the request that the jobs of one group share.

    A part of a group gets another seed than the whole: with the same one, a resumed group would
    repeat the samples that it has.
    """
    seed = jobs[0].seed
    return seed if whole else derive_seed(seed, "part", *(job.index for job in jobs))


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**31) that depends on all parts, and on nothing else."""
    # A separator that no part holds: without it, (1, 23) and (12, 3) would be one seed.
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
