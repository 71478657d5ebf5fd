"""Log-probabilities of completions, with all that they share forwarded once, with gradients.

First the prefix that all prompts of a batch share (a system prompt), then the prompts on its cache,
then the completions on theirs: each time the cache's rows are repeated for those that go on from
them, and one backward pass goes through all. Works for causal language models whose layers keep
plain keys and values and whose logits are their output layer's.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vf_pipeline.errors import TrainingError
from vf_pipeline.tokens.prefixes import MINIMUM, common_prefix_length
from vf_pipeline.training.trainer.batching import MicroBatch

CHUNK = 1024
_PROBE_TOLERANCE = 1e-3
_OLD_NAME = "past_key_values"


def completion_logprobs(
    model: Any, batch: MicroBatch, temperature: float = 1.0, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of the N tokens that carry loss, sample after sample.

    Args:
        model: a causal language model of transformers.
        batch: the samples; the first tokens of a completion may carry no loss.
        temperature: the sampling temperature; logits are divided by it.
        chunk: most positions whose logits exist at once. With more, they are computed again in
            the backward pass.

    Returns:
        fp32 tensors [N]: log-probabilities with a gradient, entropies in nats without one.
    """
    hidden = _completion_hidden(model, batch)
    device = hidden.device
    lengths = torch.tensor([len(sample.completion_ids) for sample in batch.samples], device=device)
    skips = torch.tensor([sample.skip for sample in batch.samples], device=device)
    places = torch.arange(hidden.shape[1], device=device)[None]
    carries = (places < lengths[:, None]) & (places >= skips[:, None])
    targets = _padded([sample.completion_ids for sample in batch.samples], device)[carries]
    states = hidden[carries]
    head = model.get_output_embeddings()
    parts = [
        _score(
            head,
            states[at : at + chunk],
            targets[at : at + chunk],
            temperature,
            len(states) > chunk,
        )
        for at in range(0, len(states), chunk)
    ]
    if not parts:
        return hidden.float().sum() * 0.0 + states.new_zeros(0).float(), states.new_zeros(0).float()
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]).detach()


def check_model(model: Any) -> None:
    """Make sure that the model's logits are those of its output layer on its last hidden states.

    Raises:
        TrainingError: they are not (soft-capped or scaled logits), so results would be wrong.
    """
    device = next(model.parameters()).device
    ids = torch.arange(4, device=device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids).logits.float()
        ours = model.get_output_embeddings()(model.base_model(input_ids=ids).last_hidden_state)
    if (whole - ours.float()).abs().max().item() > _PROBE_TOLERANCE:
        raise TrainingError(
            f"{type(model).__name__} changes its logits after the output layer",
            "this trainer supports models with plain logits, such as Llama, Qwen and SmolLM",
        )


def _completion_hidden(model: Any, batch: MicroBatch) -> Tensor:
    """Return the hidden states that predict the completions: [samples, longest, width]."""
    from transformers.cache_utils import DynamicCache

    device = next(model.parameters()).device
    prefix_ids = _padded(batch.prompts, device)
    prefix_lengths = torch.tensor([len(prefix) for prefix in batch.prompts], device=device)
    prefix_of = torch.tensor(batch.prompt_of, device=device)
    count, width = prefix_ids.shape
    cache: Any = DynamicCache(config=model.config)
    positions = torch.arange(width, device=device)[None]
    kept = {_cache_argument(model.base_model): cache, "use_cache": True}
    shared = _shared_length(batch)
    if shared:
        model.base_model(
            input_ids=prefix_ids[:1, :shared], position_ids=positions[:, :shared], **kept
        )
        _repeat(cache, torch.zeros(count, dtype=torch.long, device=device))
    # Padding stands to the right, where causal attention never looks from a real token.
    out = model.base_model(
        input_ids=prefix_ids[:, shared:],
        position_ids=positions[:, shared:].expand(count, -1),
        **kept,
    ).last_hidden_state
    ends = prefix_lengths - 1 - shared
    last: Tensor = out[torch.arange(count, device=device), ends][prefix_of][:, None]
    steps = max(len(sample.completion_ids) for sample in batch.samples) - 1
    if steps == 0:
        return last
    _repeat(cache, prefix_of)
    lengths = prefix_lengths[prefix_of]
    suffix_ids = _padded([sample.completion_ids for sample in batch.samples], device)[:, :-1]
    rest = model.base_model(
        input_ids=suffix_ids,
        position_ids=lengths[:, None] + torch.arange(steps, device=device)[None],
        attention_mask=_mask(lengths, width, steps, out.dtype),
        **kept,
    ).last_hidden_state
    return torch.cat([last, rest], dim=1)


def _shared_length(batch: MicroBatch) -> int:
    """Return how many tokens all prefixes share; each keeps at least one of its own."""
    if len(batch.prompts) < 2:
        return 0
    shortest = min(len(prompt) for prompt in batch.prompts)
    shared = min(common_prefix_length(batch.prompts), shortest - 1)
    return shared if shared >= MINIMUM else 0


def _repeat(cache: Any, rows: Tensor) -> None:
    """Have the cache hold, in place of its rows, those that are named, again and again."""
    for layer in cache.layers:
        layer.keys = layer.keys[rows]
        layer.values = layer.values[rows]


def _cache_argument(decoder: Any) -> str:
    """Return the name that this version of transformers has for the cache."""
    return "cache" if "cache" in inspect.signature(decoder.forward).parameters else _OLD_NAME


def _mask(prefix_lengths: Tensor, width: int, steps: int, dtype: torch.dtype) -> Tensor:
    """Return an additive mask [rows, 1, steps, width + steps]: the real prefix, then causal."""
    device = prefix_lengths.device
    rows = len(prefix_lengths)
    prefix = torch.arange(width, device=device)[None] < prefix_lengths[:, None]
    causal = torch.ones(steps, steps, dtype=torch.bool, device=device).tril()
    seen = torch.cat(
        [prefix[:, None].expand(rows, steps, width), causal[None].expand(rows, steps, steps)], dim=2
    )
    blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=device), blocked)[:, None]


def _score(
    head: Any, states: Tensor, targets: Tensor, temperature: float, again: bool
) -> tuple[Tensor, Tensor]:
    if again and torch.is_grad_enabled():
        scored = checkpoint(
            _token_logprobs, head, states, targets, temperature, use_reentrant=False
        )
        return scored[0], scored[1]
    return _token_logprobs(head, states, targets, temperature)


def _token_logprobs(
    head: Any, states: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = head(states).float() / temperature
    total = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = total - ((logits - total[:, None]).exp_() * logits).sum(dim=-1)
    return picked - total, entropy


def _padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    width = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [0] * (width - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.long, device=device)
