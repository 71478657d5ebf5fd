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
    # One decoder a choice: each holds back its own half characters and stop strings.
    streams = [ChoiceStream(responder, i) for i in range(len(requests) * responder.asked.n)]
    sampled = 0
    try:
        async for place, event in _events(requests, engine):
            # Counted even where no chunk is sent: a token that shows nothing was sampled too.
            sampled += 1
            chunk = streams[place * responder.asked.n + event.index].chunk(event)
            if chunk is not None:
                await _send(response, chunk)
        if responder.asked.stream_options.include_usage:
            usage = responder.usage(sampled)
            await _send(response, {**responder.head(chunk=True), "choices": [], "usage": usage})
    # The client went away. The caller cancels what still runs.
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
    # Unbounded: the engine must never wait for a slow client, and a request has at most n times
    # max_tokens events.
    events: asyncio.Queue[tuple[int, TokenEvent | None]] = asyncio.Queue()

    def tell(place: int, event: TokenEvent | None) -> None:
        # Called in the engine's thread, and asyncio's queues are not thread-safe: only the loop
        # itself may put. RuntimeError: it is closed, at the end of the server.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(events.put_nowait, (place, event))

    for place, request in enumerate(requests):
        # Both are set before submit: the engine may answer at once. The end (None) comes after the
        # last event, for the engine tells events first, and the loop keeps the order.
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
        # Raises what the engine failed with; the answer itself has been told already.
        requests[place].future.result()


class ChoiceStream:
    """One choice of a streamed answer: token events to chunks."""

    def __init__(self, responder: Responder, index: int) -> None:
        self._responder = responder
        self._index = index
        skip = responder.asked.skip_special_tokens
        self._text = TextStream(lambda ids: responder.tokenizer.decode(ids, skip))
        # With the stop strings left in, there is nothing to hold back.
        self._cutter = StopCutter(
            () if responder.asked.include_stop_str_in_output else responder.asked.stops
        )
        self._offset = 0
        self._begun = False

    def chunk(self, event: TokenEvent) -> dict[str, Any] | None:
        """Return the chunk that tells about a token, or None while there is nothing to tell."""
        text = self._cutter.push(self._text.push(event.token_id))
        if event.finish_reason is not None:
            # First half a character that nothing completes now, then the beginning of a stop string
            # that did not become one.
            text += self._cutter.push(self._text.finish()) + self._cutter.finish()
        asked = self._responder.asked
        # Who asked for ids or logprobs gets each token, even one without text of its own.
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
