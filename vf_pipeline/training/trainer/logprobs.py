"""Log-probabilities of completions, with all that they share forwarded once, with gradients.

First the prefix that all prompts of a batch share (a system prompt), then the prompts on its cache,
then the completions on theirs: each time the cache's rows are repeated for those that go on from
them, and one backward pass goes through all. Works for causal language models whose layers keep
plain keys and values and whose logits are their output layer's.

Shapes: P prompts and S samples of a micro-batch; W tokens of the longest prompt, R of them behind
the shared prefix; T tokens of the longest completion, U = T - 1; K = W + U; D hidden size, V
vocabulary; N tokens that carry loss, C those of one chunk; B rows of a cache. The hidden state at
place t predicts token t of the completion, so that place 0 is the prompt's last token::

    the prefix that all share ──► 1 row  ──repeat──► P rows
    the prompts behind it     ──► P rows ──repeat──► S rows; their last states: place 0
    the completions           ──► S rows: places 1 … U (the last token predicts nothing)

The padding is to the right of prompts, and so in the middle of what a completion looks back on.
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
# Two ways through the same layers round differently; soft-capping changes logits by far more.
_PROBE_TOLERANCE = 1e-3
# transformers renames the argument to "cache", and drops the old name in 5.40.
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
    hidden_STD = _completion_hidden(model, batch)
    device = hidden_STD.device
    lengths_S = torch.tensor(
        [len(sample.completion_ids) for sample in batch.samples], device=device
    )
    skips_S = torch.tensor([sample.skip for sample in batch.samples], device=device)
    places_1T = torch.arange(hidden_STD.shape[1], device=device)[None]
    carries_ST = (places_1T < lengths_S[:, None]) & (places_1T >= skips_S[:, None])
    # Padding goes before the output layer: logits are the largest tensor, V numbers a token. A mask
    # keeps the order of rows, so that N runs sample after sample, as the callers' own lists do.
    targets_N = _padded([sample.completion_ids for sample in batch.samples], device)[carries_ST]
    hidden_ND = hidden_STD[carries_ST]
    head = model.get_output_embeddings()
    # With a single chunk, computing it again would take time and lower no peak.
    again = len(hidden_ND) > chunk
    parts = [
        _score(
            head, hidden_ND[at : at + chunk], targets_N[at : at + chunk], temperature, again=again
        )
        for at in range(0, len(hidden_ND), chunk)
    ]
    if not parts:
        # Empty, but of the graph: the caller calls backward on whatever it is given.
        empty_N = hidden_ND.new_zeros(0).float()
        return hidden_STD.float().sum() * 0.0 + empty_N, empty_N
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]).detach()


def check_model(model: Any) -> None:
    """Make sure that the model's logits are those of its output layer on its last hidden states.

    Raises:
        TrainingError: they are not (soft-capped or scaled logits), so results would be wrong.
    """
    device = next(model.parameters()).device
    ids_1T = torch.arange(4, device=device)[None]
    with torch.no_grad():
        whole_1TV = model(input_ids=ids_1T).logits.float()
        hidden_1TD = model.base_model(input_ids=ids_1T).last_hidden_state
        ours_1TV = model.get_output_embeddings()(hidden_1TD).float()
    if (whole_1TV - ours_1TV).abs().max().item() > _PROBE_TOLERANCE:
        raise TrainingError(
            f"{type(model).__name__} changes its logits after the output layer",
            "this trainer supports models with plain logits, such as Llama, Qwen and SmolLM",
        )


def _completion_hidden(model: Any, batch: MicroBatch) -> Tensor:
    """Return the hidden states that predict the completions: [S, T, D]."""
    from transformers.cache_utils import DynamicCache

    device = next(model.parameters()).device
    prompt_ids_PW = _padded(batch.prompts, device)
    lengths_P = torch.tensor([len(prompt) for prompt in batch.prompts], device=device)
    prompt_of_S = torch.tensor(batch.prompt_of, device=device)
    count, width = prompt_ids_PW.shape
    cache: Any = DynamicCache(config=model.config)
    positions_1W = torch.arange(width, device=device)[None]
    kept = {_cache_argument(model.base_model): cache, "use_cache": True}
    shared = _shared_length(batch)
    if shared:
        model.base_model(
            input_ids=prompt_ids_PW[:1, :shared], position_ids=positions_1W[:, :shared], **kept
        )
        _repeat(cache, torch.zeros(count, dtype=torch.long, device=device))
    # Padding stands to the right, where causal attention never looks from a real token.
    hidden_PRD = model.base_model(
        input_ids=prompt_ids_PW[:, shared:],
        position_ids=positions_1W[:, shared:].expand(count, -1),
        **kept,
    ).last_hidden_state
    # Counted from the shared prefix on: this pass gives states for what follows it alone.
    ends_P = lengths_P - 1 - shared
    rows_P = torch.arange(count, device=device)
    last_S1D: Tensor = hidden_PRD[rows_P, ends_P][prompt_of_S][:, None]
    # The last token of a completion is only predicted: nothing looks back on it.
    steps = max(len(sample.completion_ids) for sample in batch.samples) - 1
    if steps == 0:
        return last_S1D
    _repeat(cache, prompt_of_S)
    lengths_S = lengths_P[prompt_of_S]
    suffix_ids_SU = _padded([sample.completion_ids for sample in batch.samples], device)[:, :-1]
    hidden_SUD = model.base_model(
        input_ids=suffix_ids_SU,
        # From the end of each prompt on, not of its padding: the engine saw no gap either.
        position_ids=lengths_S[:, None] + torch.arange(steps, device=device)[None],
        attention_mask=_mask(lengths_S, width, steps, hidden_PRD.dtype),
        **kept,
    ).last_hidden_state
    return torch.cat([last_S1D, hidden_SUD], dim=1)


def _shared_length(batch: MicroBatch) -> int:
    """Return how many tokens all prompts share; each keeps at least one of its own."""
    if len(batch.prompts) < 2:
        return 0
    shortest = min(len(prompt) for prompt in batch.prompts)
    # One token less than the shortest: its last state, place 0, comes from the second pass.
    shared = min(common_prefix_length(batch.prompts), shortest - 1)
    return shared if shared >= MINIMUM else 0


def _repeat(cache: Any, rows_B: Tensor) -> None:
    """Have the cache hold, in place of its rows, those that are named, again and again."""
    # Indexing is differentiable: the gradients of all copies add up in the one row they come from.
    for layer in cache.layers:
        layer.keys = layer.keys[rows_B]
        layer.values = layer.values[rows_B]


def _cache_argument(decoder: Any) -> str:
    """Return the name that this version of transformers has for the cache."""
    return "cache" if "cache" in inspect.signature(decoder.forward).parameters else _OLD_NAME


def _mask(lengths_S: Tensor, width: int, steps: int, dtype: torch.dtype) -> Tensor:
    """Return an additive mask [S, 1, U, K]: the real prompt, then causal."""
    # Four dimensions: transformers takes such a mask as it is, and builds none of its own.
    device = lengths_S.device
    rows = len(lengths_S)
    prompt_SW = torch.arange(width, device=device)[None] < lengths_S[:, None]
    causal_UU = torch.ones(steps, steps, dtype=torch.bool, device=device).tril()
    seen_SUK = torch.cat(
        [
            prompt_SW[:, None].expand(rows, steps, width),
            causal_UU[None].expand(rows, steps, steps),
        ],
        dim=2,
    )
    # Not -inf, as in transformers' own masks. No row is blocked whole: a prompt has a token.
    blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(seen_SUK, torch.zeros((), dtype=dtype, device=device), blocked)[:, None]


def _score(
    head: Any, hidden_CD: Tensor, targets_C: Tensor, temperature: float, *, again: bool
) -> tuple[Tensor, Tensor]:
    if again and torch.is_grad_enabled():
        scored = checkpoint(
            _token_logprobs, head, hidden_CD, targets_C, temperature, use_reentrant=False
        )
        return scored[0], scored[1]
    return _token_logprobs(head, hidden_CD, targets_C, temperature)


def _token_logprobs(
    head: Any, hidden_CD: Tensor, targets_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    # In fp32 whatever the model's type: a ratio of two policies is the exponential of a difference
    # between two of these, and bf16 has three digits.
    logits_CV = head(hidden_CD).float() / temperature
    total_C = torch.logsumexp(logits_CV, dim=-1)
    # The pick less the sum, where log_softmax would make one more [C, V] of which one number a row
    # is used.
    picked_C = logits_CV.gather(1, targets_C[:, None])[:, 0]
    with torch.no_grad():
        # H = log Z - E[logit]; exp_() in the difference's own memory.
        probs_CV = (logits_CV - total_C[:, None]).exp_()
        entropy_C = total_C - (probs_CV * logits_CV).sum(dim=-1)
    return picked_C - total_C, entropy_C


def _padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    # Any id will do for padding: no real token looks at one, and none carries loss.
    width = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [0] * (width - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.long, device=device)
