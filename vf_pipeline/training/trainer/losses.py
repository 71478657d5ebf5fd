"""Losses as pure functions of log-probabilities. They return sums: the caller knows the tokens.

A loss is normalised once, by the tokens of the whole optimizer step, so that it does not depend
on how the step is cut into micro-batches.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSums:
    """A loss summed over tokens, with sums (``sums``) and maxima (``peaks``) beside it."""

    loss: Tensor
    tokens: int
    sums: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)


def clip_loss(
    logprobs_N: Tensor,
    behaviour_N: Tensor,
    advantages_N: Tensor,
    clip_low: float,
    clip_high: float,
) -> LossSums:
    """Return the clipped policy loss of DAPO (arXiv 2503.14476, eq. 8), summed over N tokens.

    L = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), where ratio is that of the
    current policy to the one that sampled (the engine's own log-probabilities).

    Args:
        logprobs_N: the current policy's log-probabilities, with a gradient.
        behaviour_N: those of the policy that sampled, under the same temperature.
        advantages_N: the advantage of each token's completion.
        clip_low: lower clip.
        clip_high: upper clip.
    """
    log_ratio = logprobs_N - behaviour_N
    ratio = log_ratio.exp()
    plain = ratio * advantages_N
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N
    with torch.no_grad():
        # k3 estimator of KL(behaviour || current): http://joschu.net/blog/kl-approx.html
        kl = (ratio - log_ratio - 1.0).sum().item()
        sums = {
            "clip_frac": float((clipped < plain).sum().item()),
            "kl": kl,
            "mismatch/mean": log_ratio.abs().sum().item(),
        }
        peaks = {"mismatch/max": log_ratio.abs().max().item() if len(log_ratio) else 0.0}
    return LossSums(-torch.minimum(plain, clipped).sum(), len(logprobs_N), sums, peaks)


def cross_entropy(logprobs_N: Tensor) -> LossSums:
    """Return the negative log-likelihood, summed over N tokens."""
    return LossSums(-logprobs_N.sum(), len(logprobs_N))
