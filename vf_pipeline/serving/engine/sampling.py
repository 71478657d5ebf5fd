"""Logits to tokens: temperature, min-p, top-k, top-p, and the logprob of what was drawn.

Order as in vLLM: temperature, min-p, top-k, top-p. Draws invert the cumulative distribution at a
uniform number that is a function of (seed, sample, place), so that a batch's other rows, the order
of arrival and the number of threads have no part in it.

Shapes end names: B rows of a batch, V vocabulary.
"""

import hashlib
from collections.abc import Sequence

import torch

from vf_pipeline.serving.engine.requests import SamplingParams


def uniform(seed: int, index: int, place: int) -> float:
    """Return the uniform number in [0, 1) of one draw."""
    key = f"{seed}:{index}:{place}".encode()
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    # 53 bits are what a double holds: 64 could round up to 1.
    return (bits >> 11) / float(1 << 53)


def draw(
    logits_BV: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float], torch.Tensor]:
    """Return tokens, their logprobs, and the processed logprobs [B, V] in fp32.

    The logprobs are those of the distribution that was sampled from; a greedy row's are the
    model's own (temperature 1).
    """
    logprobs_BV = torch.log_softmax(_process(logits_BV.float(), params), dim=-1)
    tokens_B = torch.empty(len(params), dtype=torch.long)
    sampled = [row for row, p in enumerate(params) if not p.greedy]
    greedy = [row for row, p in enumerate(params) if p.greedy]
    if greedy:
        # Greedy rows are neither scaled nor cut, so these are the model's own logprobs.
        tokens_B[greedy] = _rows(logprobs_BV, greedy).argmax(dim=-1)
    if sampled:
        uniforms_B = torch.tensor([uniforms[row] for row in sampled], dtype=torch.float32)
        tokens_B[sampled] = _invert(_rows(logprobs_BV, sampled).exp(), uniforms_B)
    picked_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    return tokens_B.tolist(), picked_B.tolist(), logprobs_BV


def likeliest(logprobs_V: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """Return the likeliest tokens of one place as (id, logprob)."""
    best = torch.topk(logprobs_V, min(count, logprobs_V.shape[0]))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _rows(values_BV: torch.Tensor, rows: list[int]) -> torch.Tensor:
    # Indexing would copy [B, V]; mostly all rows of a batch are of one kind.
    return values_BV if len(rows) == values_BV.shape[0] else values_BV[rows]


def _process(logits_BV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    temperatures = [1.0 if p.greedy else p.temperature for p in params]
    if any(t != 1.0 for t in temperatures):
        logits_BV = logits_BV / torch.tensor(temperatures)[:, None]
    cut = [row for row, p in enumerate(params) if p.filtered]
    if cut:
        # The rows below are written in place, and .float() of fp32 logits is the caller's tensor.
        logits_BV = logits_BV.clone()
        for row in cut:
            logits_BV[row] = _cut(logits_BV[row], params[row])
    return logits_BV


def _cut(logits_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the logits with the tokens cut off at -inf; the likeliest one always stays."""
    if params.min_p > 0.0:
        probs_V = torch.softmax(logits_V, dim=-1)
        logits_V = logits_V.masked_fill(probs_V < params.min_p * probs_V.max(), -torch.inf)
    if 0 < params.top_k < logits_V.shape[0]:
        # Scattered by index, not cut at the k-th value: among equal logits exactly k stay.
        kept = torch.topk(logits_V, params.top_k)
        logits_V = torch.full_like(logits_V, -torch.inf).scatter(0, kept.indices, kept.values)
    if params.top_p < 1.0:
        # Stable: equal logits keep the order of their ids, and the cut is the same every time.
        ordered_V, order_V = torch.sort(logits_V, descending=True, stable=True)
        probs_V = torch.softmax(ordered_V, dim=-1)
        # A token stays while the mass before it is below top_p: the smallest set that reaches it.
        outside_V = probs_V.cumsum(-1) - probs_V >= params.top_p
        outside_V[0] = False
        cut_V = torch.zeros_like(outside_V).scatter(0, order_V, outside_V)
        logits_V = logits_V.masked_fill(cut_V, -torch.inf)
    return logits_V


def _invert(probs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    cumulative_BV = probs_BV.cumsum(dim=-1)
    total_B = cumulative_BV[:, -1]
    # The fp32 sum is not exactly 1, and the uniform number may have become 1 in fp32.
    # Strictly below the total: rounding must not run past the last token that has any mass.
    target_B = torch.minimum(uniforms_B * total_B, torch.nextafter(total_B, torch.zeros(())))
    # right=True: the first place above the target, so that tokens of no mass are never drawn, not
    # even in front, at a uniform number of 0.
    return torch.searchsorted(cumulative_BV, target_B[:, None], right=True)[:, 0]
