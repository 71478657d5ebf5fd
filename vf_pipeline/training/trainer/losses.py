"""Losses as pure functions of log-probabilities. They return sums: the caller knows the tokens.

A loss is normalised once, by the tokens of the whole optimizer step, so that it does not depend
on how the step is cut into micro-batches.

Shapes: N tokens that carry loss, sample after sample.
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
    log_ratio_N = logprobs_N - behaviour_N
    ratio_N = log_ratio_N.exp()
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N
    with torch.no_grad():
        # Without a graph: a metric that is kept would keep all activations with it.
        # k3 estimator of KL(behaviour || current): http://joschu.net/blog/kl-approx.html
        kl = (ratio_N - log_ratio_N - 1.0).sum().item()
        sums = {
            # Where the clip wins the minimum, and the token has no gradient: less than all ratios
            # outside the band, for the sign of the advantage decides.
            "clip_frac": float((clipped_N < plain_N).sum().item()),
            "kl": kl,
            "mismatch/mean": log_ratio_N.abs().sum().item(),
        }
        peaks = {"mismatch/max": log_ratio_N.abs().max().item() if len(log_ratio_N) else 0.0}
    # Inside the band both are equal; minimum then gives each half of the gradient, and both halves
    # reach the same ratio.
    return LossSums(-torch.minimum(plain_N, clipped_N).sum(), len(logprobs_N), sums, peaks)


def cross_entropy(logprobs_N: Tensor) -> LossSums:
    """Return the negative log-likelihood, summed over N tokens."""
    return LossSums(-logprobs_N.sum(), len(logprobs_N))
