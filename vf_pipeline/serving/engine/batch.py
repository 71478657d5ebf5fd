"""The sequences that run, each in a slot, from their prompts to their last tokens.

Slots in use are contiguous: a sequence that is done is replaced by the last one at once.
"""

from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

import torch

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.decoder import Decoder
from vf_pipeline.serving.engine.kv_cache import KeyValues
from vf_pipeline.serving.engine.prefix_cache import PrefixCache
from vf_pipeline.serving.engine.requests import (
    Counters,
    EngineLimits,
    FinishReason,
    GenerationRequest,
    Sample,
    TokenEvent,
)
from vf_pipeline.serving.engine.sampling import draw, likeliest, uniform
from vf_pipeline.tokens.detokenize import Decode, TextStream, cut_at_stop
from vf_pipeline.tokens.prefixes import Ids, shared_prefixes

# Slots of a few places more would otherwise be allocated anew for each longer prompt.
_ROUND_TO = 32

Start = tuple[GenerationRequest, int]
"""A request, and how many of its samples start now."""


@dataclass(slots=True)
class RunningSequence:
    """One sequence in a slot; ``length`` tokens of it are in the cache."""

    request: GenerationRequest
    index: int
    length: int
    sample: Sample
    text: TextStream | None = None


class Batch:
    """The running sequences of a decoder.

    Raises:
        ConfigError: one sequence of ``max_context`` tokens does not fit into the budget.
    """

    def __init__(
        self,
        decoder: Decoder,
        limits: EngineLimits,
        decode: Decode,
        eos_ids: frozenset[int],
        counters: Counters,
    ) -> None:
        self.sequences: list[RunningSequence] = []
        self._decoder = decoder
        self._limits = limits
        self._decode = decode
        self._eos = eos_ids
        self._counters = counters
        per_token = decoder.cache.bytes_per_token
        # One eighth for kept prefixes, the rest for slots: both hold the same kind of bytes, and
        # kv_budget_mb bounds their sum.
        budget = limits.kv_budget_mb << 20
        self._prefixes: PrefixCache[KeyValues] = PrefixCache(budget // 8, per_token)
        self._slot_tokens = (budget - budget // 8) // per_token
        if self.capacity(limits.max_context) < 1:
            need = _rounded(limits.max_context) * per_token * 8 / 7 / (1 << 20)
            raise ConfigError(
                f"kv_budget_mb {limits.kv_budget_mb} does not hold one sequence of "
                f"{limits.max_context} tokens",
                f"raise it to {int(need) + 1}, or lower max_context",
            )

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def length(self) -> int:
        """Places that the longest running sequence may need."""
        return max((sequence.request.length for sequence in self.sequences), default=0)

    def capacity(self, length: int) -> int:
        """Return how many sequences fit when each may need ``length`` places."""
        return min(self._limits.max_batch, self._slot_tokens // _rounded(length))

    def start(self, starts: Sequence[Start], length: int, version: str) -> None:
        """Compute prompts, copy them to their samples' slots, and draw the first tokens.

        Args:
            starts: requests and how many samples of each; together with what runs they must be
                within ``capacity(length)``.
            length: places that the longest sequence may need, running ones included.
            version: name of the weights.
        """
        self._fit(len(self.sequences) + sum(count for _, count in starts), length)
        first = len(self.sequences)
        prefixes = self._find_prefixes([request.prompt_ids for request, _ in starts], first)
        # Prompts of like length are computed together, so that padding stays small.
        widths = [len(r.prompt_ids) - len(s[0]) for (r, _), s in zip(starts, prefixes, strict=True)]
        order = sorted(range(len(starts)), key=widths.__getitem__)
        logits_BV = self._prefill([(starts[i][0], prefixes[i]) for i in order], first)
        # Each prompt's own row is its first sample's; the other samples' rows come behind all
        # prompts, group by group. groups[i] is the row of logits that new row i draws from.
        groups = list(range(len(order)))
        new = [self._sequence(starts[i][0], 0, version) for i in order]
        for group, (request, count) in enumerate(starts[i] for i in order):
            targets = range(first + len(new), first + len(new) + count - 1)
            self._decoder.cache.copy_row(first + group, list(targets), len(request.prompt_ids))
            new += [self._sequence(request, offset, version) for offset in range(1, count)]
            groups += [group] * (count - 1)
            request.started += count
        self.sequences += new
        self._absorb(first, logits_BV[groups])

    def step(self) -> None:
        """Append one token to every sequence."""
        tokens = [sequence.sample.token_ids[-1] for sequence in self.sequences]
        logits_BV = self._decoder.step(tokens, [sequence.length for sequence in self.sequences])
        for sequence in self.sequences:
            # Before the draw: the token just fed is in the cache now, and a move must copy it too.
            sequence.length += 1
        self._absorb(0, logits_BV)

    def drop_cancelled(self) -> None:
        """Free the slots of requests that nobody waits for any more."""
        self._keep([not sequence.request.future.done() for sequence in self.sequences])

    def forget_prefixes(self) -> None:
        """Drop what was computed with other weights."""
        self._prefixes.clear()

    def clear(self) -> None:
        """Drop all sequences and the cache's memory, after a failure."""
        self.sequences.clear()
        self._decoder.cache.resize(1, 1, 0)

    def _sequence(self, request: GenerationRequest, offset: int, version: str) -> RunningSequence:
        text = TextStream(self._decode) if request.params.stop else None
        sample = Sample(weight_version=version)
        return RunningSequence(
            request, request.started + offset, len(request.prompt_ids), sample, text
        )

    def _prefill(
        self, prompts: Sequence[tuple[GenerationRequest, tuple[Ids, KeyValues | None]]], first: int
    ) -> torch.Tensor:
        for offset, (_, (_, kept)) in enumerate(prompts):
            if kept is not None:
                self._decoder.cache.put([first + offset], kept)
        ids = [request.prompt_ids for request, _ in prompts]
        reused = [len(prefix) for _, (prefix, _) in prompts]
        self._counters.prompt_tokens += sum(len(prompt) for prompt in ids)
        self._counters.prompt_tokens_reused += sum(reused)
        return self._decoder.prefill(ids, first, reused)

    def _find_prefixes(
        self, prompts: list[Ids], scratch: int
    ) -> list[tuple[Ids, KeyValues | None]]:
        """Return for each prompt its longest known prefix; those that pay are computed first."""
        if self._limits.deterministic:
            return [((), None)] * len(prompts)
        for ids in shared_prefixes(prompts, self._prefixes.recent):
            # Shorter ones come first, so that a longer one is computed from where it leaves them.
            # The scratch row is the first new prompt's, which is written afterwards.
            known = self._prefixes.longest(ids, len(ids))
            if known is None or len(known[0]) < len(ids):
                start, before = (len(known[0]), known[1]) if known else (0, None)
                self._prefixes.add(ids, self._decoder.prefix(ids, scratch, start, before))
        found: list[tuple[Ids, KeyValues | None]] = []
        for prompt in prompts:
            # Once each, so that the recent prompts are different ones; and after the search, which
            # would count those of this batch twice.
            if prompt not in self._prefixes.recent:
                self._prefixes.recent.append(prompt)
            # Never the whole prompt: its last token is computed, for its logits.
            found.append(self._prefixes.longest(prompt, len(prompt) - 1) or ((), None))
        return found

    def _absorb(self, first: int, logits_BV: torch.Tensor) -> None:
        """Draw a token for each sequence from ``first`` on, and let finished ones go."""
        sequences = self.sequences[first:]
        params = [sequence.request.params for sequence in sequences]
        # By place in the sequence, not by step: the same numbers whenever it was admitted.
        uniforms = [uniform(r.request.seed, r.index, len(r.sample.token_ids)) for r in sequences]
        tokens, logprobs, processed_BV = draw(logits_BV, params, uniforms)
        keep = [True] * first
        for place, sequence in enumerate(sequences):
            count = sequence.request.params.top_logprobs
            top = likeliest(processed_BV[place], count) if count else ()
            keep.append(not self._take(sequence, tokens[place], logprobs[place], top))
        self._counters.sampled_tokens += len(sequences)
        self._keep(keep)

    def _take(
        self,
        sequence: RunningSequence,
        token: int,
        logprob: float,
        top: tuple[tuple[int, float], ...],
    ) -> bool:
        """Append a token and tell about it; return whether its sequence is done."""
        request, sample = sequence.request, sequence.sample
        sample.token_ids.append(token)
        sample.logprobs.append(logprob)
        sample.top.append(top)
        reason = self._finish_reason(sequence, token)
        # Before the future is set: a stream must have its last event before its end.
        if request.on_token is not None:
            # The listener's event loop may be closed already; nobody is listening then.
            with suppress(RuntimeError):
                request.on_token(
                    TokenEvent(sequence.index, token, logprob, top, reason, sample.weight_version)
                )
        if reason is None:
            return False
        sample.finish_reason = reason
        request.samples[sequence.index] = sample
        if len(request.samples) == request.n:
            with suppress(InvalidStateError):
                request.future.set_result([request.samples[i] for i in range(request.n)])
        return True

    def _finish_reason(self, sequence: RunningSequence, token: int) -> FinishReason | None:
        params = sequence.request.params
        # Before the length: an end token that is the last one allowed is an end, not a cut.
        if token in params.stop_token_ids or (token in self._eos and not params.ignore_eos):
            return "stop"
        if sequence.text is not None:
            sequence.text.push(token)
            if cut_at_stop(sequence.text.text, params.stop) is not None:
                return "stop"
        return "length" if len(sequence.sample.token_ids) >= params.max_tokens else None

    def _keep(self, keep: list[bool]) -> None:
        """Drop sequences; the last ones move into the gaps."""
        if all(keep):
            return
        # As many gaps below as movers above: rows stay contiguous, and attention reads one slice.
        left = sum(keep)
        gaps = [i for i in range(left) if not keep[i]]
        movers = [i for i in range(left, len(keep)) if keep[i]]
        for gap, mover in zip(gaps, movers, strict=True):
            self._decoder.cache.copy_row(mover, [gap], self.sequences[mover].length)
            self.sequences[gap] = self.sequences[mover]
        del self.sequences[left:]

    def _fit(self, sequences: int, length: int) -> None:
        """Make the cache large enough; slots double, so that it is seldom copied."""
        cache, length = self._decoder.cache, _rounded(length)
        exact = self._limits.deterministic
        # In deterministic mode each request gets slots of its own size, whatever ran before. Shrunk
        # only when nothing runs: then there is nothing to copy.
        wasteful = not self.sequences and (exact or cache.length > 2 * length)
        if sequences > cache.slots or length > cache.length or wasteful:
            slots = sequences if exact else max(sequences, 2 * len(self.sequences))
            cache.resize(min(slots, self.capacity(length)), length, len(self.sequences))


def _rounded(length: int) -> int:
    return -(-length // _ROUND_TO) * _ROUND_TO
