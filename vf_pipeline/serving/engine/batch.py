"""The sequences that run: rows in slots, from their prompts to their last tokens.

Rows are contiguous: a row that is done is replaced by the last one at once.
"""

from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

import torch

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.decoder import Decoder
from vf_pipeline.serving.engine.kv_cache import KeyValues
from vf_pipeline.serving.engine.prefix_cache import Ids, StemStore, shared_stems
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

_ROUND_TO = 32

Start = tuple[GenerationRequest, int]
"""A request, and how many of its samples start now."""


@dataclass(slots=True)
class Row:
    """One sequence in a slot; ``length`` tokens of it are in the cache."""

    request: GenerationRequest
    index: int
    length: int
    sample: Sample
    text: TextStream | None = None


class Batch:
    """The running rows of a decoder.

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
        self.rows: list[Row] = []
        self._decoder = decoder
        self._limits = limits
        self._decode = decode
        self._eos = eos_ids
        self._counters = counters
        per_token = decoder.cache.bytes_per_token
        budget = limits.kv_budget_mb << 20
        self._stems: StemStore[KeyValues] = StemStore(budget // 8, per_token)
        self._slot_tokens = (budget - budget // 8) // per_token
        if self.capacity(limits.max_context) < 1:
            need = _rounded(limits.max_context) * per_token * 8 / 7 / (1 << 20)
            raise ConfigError(
                f"kv_budget_mb {limits.kv_budget_mb} does not hold one sequence of "
                f"{limits.max_context} tokens",
                f"raise it to {int(need) + 1}, or lower max_context",
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """Places that the longest running sequence may need."""
        return max((row.request.length for row in self.rows), default=0)

    def capacity(self, length: int) -> int:
        """Return how many sequences fit when each may need ``length`` places."""
        return min(self._limits.max_batch, self._slot_tokens // _rounded(length))

    def start(self, starts: Sequence[Start], length: int, version: str) -> None:
        """Compute prompts, copy them to their samples' slots, and draw the first tokens.

        Args:
            starts: requests and how many samples of each; together with the running rows they must
                be within ``capacity(length)``.
            length: places that the longest sequence may need, running ones included.
            version: name of the weights.
        """
        self._fit(len(self.rows) + sum(count for _, count in starts), length)
        first = len(self.rows)
        stems = self._find_stems([request.prompt_ids for request, _ in starts], first)
        # Prompts of like length are computed together, so that padding stays small.
        widths = [len(r.prompt_ids) - len(s[0]) for (r, _), s in zip(starts, stems, strict=True)]
        order = sorted(range(len(starts)), key=widths.__getitem__)
        logits_BV = self._prefill([(starts[i][0], stems[i]) for i in order], first)
        groups = list(range(len(order)))
        new = [self._row(starts[i][0], 0, version) for i in order]
        for group, (request, count) in enumerate(starts[i] for i in order):
            targets = range(first + len(new), first + len(new) + count - 1)
            self._decoder.cache.copy_row(first + group, list(targets), len(request.prompt_ids))
            new += [self._row(request, offset, version) for offset in range(1, count)]
            groups += [group] * (count - 1)
            request.started += count
        self.rows += new
        self._absorb(first, logits_BV[groups])

    def step(self) -> None:
        """Append one token to every row."""
        tokens = [row.sample.token_ids[-1] for row in self.rows]
        logits_BV = self._decoder.step(tokens, [row.length for row in self.rows])
        for row in self.rows:
            row.length += 1
        self._absorb(0, logits_BV)

    def drop_cancelled(self) -> None:
        """Free the slots of requests that nobody waits for any more."""
        self._keep([not row.request.future.done() for row in self.rows])

    def forget_stems(self) -> None:
        """Drop what was computed with other weights."""
        self._stems.clear()

    def clear(self) -> None:
        """Drop all rows and the cache's memory, after a failure."""
        self.rows.clear()
        self._decoder.cache.resize(1, 1, 0)

    def _row(self, request: GenerationRequest, offset: int, version: str) -> Row:
        text = TextStream(self._decode) if request.params.stop else None
        sample = Sample(weight_version=version)
        return Row(request, request.started + offset, len(request.prompt_ids), sample, text)

    def _prefill(
        self, prompts: Sequence[tuple[GenerationRequest, tuple[Ids, KeyValues | None]]], first: int
    ) -> torch.Tensor:
        for offset, (_, (_, kept)) in enumerate(prompts):
            if kept is not None:
                self._decoder.cache.put([first + offset], kept)
        ids = [request.prompt_ids for request, _ in prompts]
        reused = [len(stem) for _, (stem, _) in prompts]
        self._counters.prompt_tokens += sum(len(prompt) for prompt in ids)
        self._counters.prompt_tokens_reused += sum(reused)
        return self._decoder.prefill(ids, first, reused)

    def _find_stems(self, prompts: list[Ids], scratch: int) -> list[tuple[Ids, KeyValues | None]]:
        """Return for each prompt the longest stem at hand; stems that pay are computed first."""
        if self._limits.deterministic:
            return [((), None)] * len(prompts)
        for ids in shared_stems(prompts, self._stems.recent):
            known = self._stems.longest(ids, len(ids))
            if known is None or len(known[0]) < len(ids):
                start, before = (len(known[0]), known[1]) if known else (0, None)
                self._stems.add(ids, self._decoder.stem(ids, scratch, start, before))
        found: list[tuple[Ids, KeyValues | None]] = []
        for prompt in prompts:
            if prompt not in self._stems.recent:
                self._stems.recent.append(prompt)
            found.append(self._stems.longest(prompt, len(prompt) - 1) or ((), None))
        return found

    def _absorb(self, first: int, logits_BV: torch.Tensor) -> None:
        """Draw a token for each of the rows from ``first`` on, and let finished rows go."""
        rows = self.rows[first:]
        params = [row.request.params for row in rows]
        uniforms = [uniform(r.request.seed, r.index, len(r.sample.token_ids)) for r in rows]
        tokens, logprobs, processed_BV = draw(logits_BV, params, uniforms)
        keep = [True] * first
        for place, row in enumerate(rows):
            count = row.request.params.top_logprobs
            top = likeliest(processed_BV[place], count) if count else ()
            keep.append(not self._take(row, tokens[place], logprobs[place], top))
        self._counters.sampled_tokens += len(rows)
        self._keep(keep)

    def _take(
        self, row: Row, token: int, logprob: float, top: tuple[tuple[int, float], ...]
    ) -> bool:
        """Append a token and tell about it; return whether its row is done."""
        request, sample = row.request, row.sample
        sample.token_ids.append(token)
        sample.logprobs.append(logprob)
        sample.top.append(top)
        reason = self._finish_reason(row, token)
        if request.on_token is not None:
            # The listener's event loop may be closed already; nobody is listening then.
            with suppress(RuntimeError):
                request.on_token(
                    TokenEvent(row.index, token, logprob, top, reason, sample.weight_version)
                )
        if reason is None:
            return False
        sample.finish_reason = reason
        request.samples[row.index] = sample
        if len(request.samples) == request.n:
            with suppress(InvalidStateError):
                request.future.set_result([request.samples[i] for i in range(request.n)])
        return True

    def _finish_reason(self, row: Row, token: int) -> FinishReason | None:
        params = row.request.params
        if token in params.stop_token_ids or (token in self._eos and not params.ignore_eos):
            return "stop"
        if row.text is not None:
            row.text.push(token)
            if cut_at_stop(row.text.text, params.stop) is not None:
                return "stop"
        return "length" if len(row.sample.token_ids) >= params.max_tokens else None

    def _keep(self, keep: list[bool]) -> None:
        """Drop rows; the last ones move into the gaps."""
        if all(keep):
            return
        left = sum(keep)
        gaps = [i for i in range(left) if not keep[i]]
        movers = [i for i in range(left, len(keep)) if keep[i]]
        for gap, mover in zip(gaps, movers, strict=True):
            self._decoder.cache.copy_row(mover, [gap], self.rows[mover].length)
            self.rows[gap] = self.rows[mover]
        del self.rows[left:]

    def _fit(self, rows: int, length: int) -> None:
        """Make the cache large enough; slots double, so that it is seldom copied."""
        cache, length = self._decoder.cache, _rounded(length)
        exact = self._limits.deterministic
        wasteful = not self.rows and (exact or cache.length > 2 * length)
        if rows > cache.slots or length > cache.length or wasteful:
            slots = rows if exact else max(rows, 2 * len(self.rows))
            cache.resize(min(slots, self.capacity(length)), length, len(self.rows))


def _rounded(length: int) -> int:
    return -(-length // _ROUND_TO) * _ROUND_TO
