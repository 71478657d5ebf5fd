"""Answers told token by token: events of the engine's thread to server-sent events.

``engine thread -> on_token -> queue of the event loop -> ChoiceStream -> one chunk a token``
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web

from vf_pipeline.serving.engine.requests import GenerationRequest, SamplingEngine, TokenEvent
from vf_pipeline.serving.http.errors import ApiError
from vf_pipeline.serving.http.responses import Responder
from vf_pipeline.tokens.detokenize import StopCutter, TextStream

logger = logging.getLogger(__name__)


async def stream_answer(
    http: web.Request,
    responder: Responder,
    requests: Sequence[GenerationRequest],
    engine: SamplingEngine,
) -> web.StreamResponse:
    """Submit requests and send their tokens to the client as server-sent events."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    streams = [ChoiceStream(responder, i) for i in range(len(requests) * responder.asked.n)]
    sampled = 0
    try:
        async for place, event in _events(requests, engine):
            sampled += 1
            chunk = streams[place * responder.asked.n + event.index].chunk(event)
            if chunk is not None:
                await _send(response, chunk)
        if responder.asked.stream_options.include_usage:
            usage = responder.usage(sampled)
            await _send(response, {**responder.head(chunk=True), "choices": [], "usage": usage})
    except ConnectionError:
        return response
    except Exception as error:
        # The headers are out: an error can only be told in the stream.
        logger.exception("a stream failed")
        await _send(response, ApiError(500, str(error), "engine_failed").body())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _events(
    requests: Sequence[GenerationRequest], engine: SamplingEngine
) -> AsyncIterator[tuple[int, TokenEvent]]:
    """Yield token events of all requests, as (number of the request, event), to their ends."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[int, TokenEvent | None]] = asyncio.Queue()

    def tell(place: int, event: TokenEvent | None) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(events.put_nowait, (place, event))

    for place, request in enumerate(requests):
        request.on_token = partial(tell, place)
        request.future.add_done_callback(lambda _, place=place: tell(place, None))  # type: ignore[misc]
        engine.submit(request)
    open_requests = len(requests)
    while open_requests:
        place, event = await events.get()
        if event is not None:
            yield place, event
            continue
        open_requests -= 1
        requests[place].future.result()


class ChoiceStream:
    """One choice of a streamed answer: token events to chunks."""

    def __init__(self, responder: Responder, index: int) -> None:
        self._responder = responder
        self._index = index
        skip = responder.asked.skip_special_tokens
        self._text = TextStream(lambda ids: responder.tokenizer.decode(ids, skip))
        self._cutter = StopCutter(
            () if responder.asked.include_stop_str_in_output else responder.asked.stops
        )
        self._offset = 0
        self._begun = False

    def chunk(self, event: TokenEvent) -> dict[str, Any] | None:
        """Return the chunk that tells about a token, or None while there is nothing to tell."""
        text = self._cutter.push(self._text.push(event.token_id))
        if event.finish_reason is not None:
            text += self._cutter.push(self._text.finish()) + self._cutter.finish()
        asked = self._responder.asked
        quiet = not text and asked.top_count is None and not asked.return_token_ids
        if quiet and event.finish_reason is None:
            return None
        choice: dict[str, Any] = {
            "index": self._index,
            "finish_reason": event.finish_reason,
            "logprobs": self._responder.logprobs(
                [event.token_id], [event.logprob], [event.top], self._offset
            ),
            "weight_version": event.weight_version,
        }
        self._offset += len(text)
        if self._responder.chat:
            role = {} if self._begun else {"role": "assistant"}
            choice["delta"] = {**role, "content": text}
        else:
            choice["text"] = text
        if asked.return_token_ids:
            choice["token_ids"] = [event.token_id]
        body = {**self._responder.head(chunk=True), "choices": [choice]}
        if asked.return_token_ids and not self._begun:
            prompt = self._responder.prompts[self._index // asked.n]
            (body if self._responder.chat else choice)["prompt_token_ids"] = list(prompt)
        self._begun = True
        return body


async def _send(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(body)}\n\n".encode())
