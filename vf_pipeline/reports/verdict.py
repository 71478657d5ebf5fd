"""The verdict of a chain in a few lines: the gain over the best prompted base comes first."""

from collections.abc import Sequence

from vf_pipeline.evaluation.compare import format_mean, verdict
from vf_pipeline.evaluation.gains import Gains
from vf_pipeline.runs.outputs import LeftOut

_MOST = 0.5


def verdict_lines(gains: Gains, passed: bool, left_out: Sequence[LeftOut] = ()) -> list[str]:
    """Return the verdict: the gain over the best prompting, then over the plain base, by stage.

    Args:
        gains: what was measured.
        passed: whether the gate was passed.
        left_out: label and reason of the promptings that could not be measured.
    """
    sign = "PASSED" if passed else "NOT PASSED"
    best = gains.best
    which = "best prompted base" if len(gains.bases) > 1 else "plain base"
    lines = [f"{sign}: {verdict(gains.over_best, over=f'the {which} ({_described(gains, best)})')}"]
    if best != 0:
        lines.append(f"Over plain base: {verdict(gains.over_plain)} ({_described(gains, 0)})")
    lines += [
        f"SFT over base:   {verdict(gains.by_sft)}",
        f"GRPO over SFT:   {verdict(gains.by_grpo)}",
    ]
    unpaired = gains.over_best.unpaired
    if unpaired:
        lines.append(f"{unpaired} examples left out: a rollout failed or has no score")
    lines += [f"not measured: base, {row.label}: {row.reason}" for row in left_out]
    return lines


def _described(gains: Gains, which: int) -> str:
    """Return "8-shot, 64 tokens: 0.625", and whether a token limit cut most of the answers."""
    base, comparison = gains.bases[which], gains.over[which]
    text = f"{base.label}: {format_mean(comparison.before, comparison.bounded)}"
    # A reward of cut answers says little about the model: it is the budget that failed.
    return text + (
        f"; {100 * base.truncated:.0f} % of answers cut" if base.truncated > _MOST else ""
    )
