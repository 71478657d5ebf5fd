"""From scored rollouts to training samples: pure, and nothing that could poison a gradient."""

import logging
import math
from collections import Counter
from collections.abc import Sequence

from vf_pipeline.types import Rollout, Score, TrainSample, Turn

logger = logging.getLogger(__name__)


def samples_from_group(
    group_id: str,
    pairs: Sequence[tuple[Rollout, Score]],
    advantages: Sequence[float],
    version: int,
    dropped: Counter[str] | None = None,
) -> list[TrainSample]:
    """Return one sample for each turn of each rollout of a group.

    Args:
        group_id: names the group; all its samples share one prompt.
        pairs: the group's rollouts with their scores.
        advantages: one number for each pair, for all tokens of its rollout.
        version: number of the weights that sampled them.
        dropped: counts, by reason, what was left out: rollouts with an error, without a reward or
            without tokens, and turns that break an invariant.

    Raises:
        ValueError: there are more or fewer advantages than pairs.
    """
    counts: Counter[str] = Counter()
    samples = []
    for (rollout, score), advantage in zip(pairs, advantages, strict=True):
        reason = _rollout_flaw(rollout, score, advantage)
        if reason:
            counts[reason] += 1
            continue
        assert score.reward is not None
        for turn in rollout.turns:
            reason = turn_flaw(turn)
            if reason:
                counts[reason] += 1
                continue
            samples.append(
                TrainSample(
                    group=group_id,
                    prompt_ids=turn.prompt_ids,
                    completion_ids=turn.completion_ids,
                    logprobs=turn.logprobs,
                    reward=score.reward,
                    advantage=advantage,
                    version=version,
                    truncated=turn.finish_reason == "length",
                )
            )
    if counts:
        logger.warning("group %s: left out %s", group_id, dict(counts))
    if dropped is not None:
        dropped.update(counts)
    return samples


def turn_flaw(turn: Turn) -> str:
    """Return why a turn cannot be trained on, or "" when it can."""
    if not turn.prompt_ids:
        return "empty prompt"
    if not turn.completion_ids:
        return "empty completion"
    if len(turn.logprobs) != len(turn.completion_ids):
        # Never cut to fit: which of them belongs to which token is unknown then.
        return "logprobs of another length"
    if not all(math.isfinite(value) for value in turn.logprobs):
        return "logprob not finite"
    # A little room: servers round, and an almost certain token has a logprob of 0.
    if any(value > 1e-4 for value in turn.logprobs):
        return "logprob above zero"
    if min(min(turn.prompt_ids), min(turn.completion_ids)) < 0:
        return "negative token id"
    return ""


def _rollout_flaw(rollout: Rollout, score: Score, advantage: float) -> str:
    if rollout.error is not None:
        return "error"
    if score.reward is None:
        return "unscored"
    if not (math.isfinite(score.reward) and math.isfinite(advantage)):
        return "reward or advantage not finite"
    return "" if rollout.turns else "no tokens"
