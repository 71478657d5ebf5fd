"""Samples as the JSON that OpenAI's clients and vLLM's users expect."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vf_pipeline.serving.engine.requests import Sample
from vf_pipeline.serving.http.requests import ChatRequest, SamplingRequest
from vf_pipeline.tokens.detokenize import cut_at_stop
from vf_pipeline.tokens.tokenizer import ChatTokenizer

# JSON has no minus infinity, which tokens that were cut off have; vLLM's value for it.
_LOWEST = -9999.0


@dataclass(frozen=True)
class Responder:
    """How one request is answered: in which dialect, under which id."""

    asked: SamplingRequest
    model: str
    tokenizer: ChatTokenizer
    prompts: Sequence[Sequence[int]]
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def chat(self) -> bool:
        """Whether the chat route was asked."""
        return isinstance(self.asked, ChatRequest)

    def head(self, chunk: bool = False) -> dict[str, Any]:
        """Return the fields that every answer begins with."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.token}",
            "object": kind + (".chunk" if chunk and self.chat else ""),
            "created": self.created,
            "model": self.model,
        }

    def usage(self, completion_tokens: int) -> dict[str, int]:
        """Return the count of tokens."""
        prompt = sum(len(ids) for ids in self.prompts)
        total = prompt + completion_tokens
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return dict(zip(names, (prompt, completion_tokens, total), strict=True))

    def answer(self, results: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        """Return the whole answer: ``results`` holds the samples of each prompt."""
        choices: list[dict[str, Any]] = []
        for prompt, samples in zip(self.prompts, results, strict=True):
            for sample in samples:
                choices.append(self._choice(len(choices), prompt, sample))
        sampled = sum(len(s.token_ids) for samples in results for s in samples)
        body = {**self.head(), "choices": choices, "usage": self.usage(sampled)}
        # Where vLLM has them: a chat has one prompt, beside its choices; completions may have
        # several, one in each choice.
        if self.asked.return_token_ids and self.chat:
            body["prompt_token_ids"] = list(self.prompts[0])
        return body

    def _choice(self, index: int, prompt: Sequence[int], sample: Sample) -> dict[str, Any]:
        # Only the text is cut at a stop string. Ids and logprobs stay whole: they are what was
        # sampled, and what is trained on.
        text = self.tokenizer.decode(sample.token_ids, self.asked.skip_special_tokens)
        cut = cut_at_stop(text, self.asked.stops) if sample.finish_reason == "stop" else None
        if cut is not None and not self.asked.include_stop_str_in_output:
            text = cut
        choice: dict[str, Any] = {
            "index": index,
            "finish_reason": sample.finish_reason,
            "logprobs": self.logprobs(sample.token_ids, sample.logprobs, sample.top),
            "weight_version": sample.weight_version,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if self.asked.return_token_ids:
            choice["token_ids"] = sample.token_ids
            if not self.chat:
                choice["prompt_token_ids"] = list(prompt)
        return choice

    def logprobs(
        self,
        ids: Sequence[int],
        values: Sequence[float],
        tops: Sequence[Sequence[tuple[int, float]]],
        offset: int = 0,
    ) -> dict[str, Any] | None:
        """Return logprobs in the route's form, or None when they were not asked for."""
        if self.asked.top_count is None:
            return None
        tokens = [self.tokenizer.token_text(i) for i in ids]
        if self.chat:
            places = zip(tokens, values, tops, strict=True)
            return {"content": [self._place(token, v, top) for token, v, top in places]}
        # Of the tokens' own texts: a character split over two ids counts for each of them.
        offsets = [offset]
        for token in tokens:
            offsets.append(offsets[-1] + len(token))
        named = [{self.tokenizer.token_text(i): max(v, _LOWEST) for i, v in top} for top in tops]
        return {
            "tokens": tokens,
            "token_logprobs": [max(value, _LOWEST) for value in values],
            "top_logprobs": named if self.asked.top_count else None,
            "text_offset": offsets[:-1],
        }

    def _place(self, token: str, value: float, top: Sequence[tuple[int, float]]) -> dict[str, Any]:
        likeliest = [_entry(self.tokenizer.token_text(i), v) for i, v in top]
        return {**_entry(token, value), "top_logprobs": likeliest}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, _LOWEST), "bytes": list(token.encode())}
