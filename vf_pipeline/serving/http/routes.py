"""The routes of the engine's HTTP face: OpenAI's, and vLLM's where OpenAI has no word.

Deliberately lacks embeddings, tool-call parsing and structured output: the client parses what the
model wrote.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.requests import (
    EngineLimits,
    GenerationRequest,
    TokenEvent,
    WeightUpdate,
)
from vf_pipeline.serving.engine.scheduler import Engine
from vf_pipeline.serving.http.access import explain_errors, guard_access
from vf_pipeline.serving.http.requests import (
    MOST_SEQUENCES,
    ApiError,
    Asked,
    AskedChat,
    AskedCompletion,
    AskedTokens,
    AskedUpdate,
    parse,
    tokens_that_fit,
)
from vf_pipeline.serving.http.responses import ChoiceStream, Shape
from vf_pipeline.serving.http.text import ServedTokenizer

logger = logging.getLogger(__name__)

_MOST_BODY_BYTES = 16 << 20
_MOST_WAITING = 8192
_UPDATE_WAIT_S = 60.0
_UPDATE_LOAD_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What is served, where, and which folders new weights may come from."""

    model_dir: str
    served_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    limits: EngineLimits = field(default_factory=EngineLimits)
    weights_roots: tuple[Path, ...] = ()
    weight_version: str = ""
    seed: int = 0


class Face:
    """The routes, over one engine."""

    def __init__(
        self, engine: Engine, tokenizer: ServedTokenizer, settings: ServerSettings
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._settings = settings
        self._roots = [root.resolve() for root in settings.weights_roots]
        self._seeds = random.Random(settings.seed)
        self._started = int(time.time())

    def app(self, api_key: str = "") -> web.Application:
        """Return the application."""
        middlewares = [explain_errors, guard_access(api_key)]
        app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=middlewares)
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.complete),
                web.post("/tokenize", self.tokenize),
                web.post("/update_weights", self.update_weights),
                web.get("/weight_info", self.weight_info),
            ]
        )
        return app

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while the engine works; how much it has to do."""
        counters = self._engine.counters
        body = {
            "status": "ok" if self._engine.alive else "dead",
            "running": counters.running,
            "waiting": counters.waiting,
            "prompt_tokens": counters.prompt_tokens,
            "prompt_tokens_reused": counters.prompt_tokens_reused,
            "sampled_tokens": counters.sampled_tokens,
        }
        return web.json_response(body, status=200 if self._engine.alive else 503)

    async def models(self, _: web.Request) -> web.Response:
        """List the one model."""
        model = {
            "id": self._settings.served_name,
            "object": "model",
            "created": self._started,
            "owned_by": "vf-pipeline",
            "root": self._settings.model_dir,
            "max_model_len": self._settings.limits.max_context,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def weight_info(self, _: web.Request) -> web.Response:
        """Say which weights are served."""
        return web.json_response({"weight_version": self._engine.weight_version})

    async def tokenize(self, request: web.Request) -> web.Response:
        """Return the ids of a text or a chat."""
        asked = parse(AskedTokens, await _json(request))
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give either prompt or messages", "invalid_value", "prompt")
        if asked.prompt is not None:
            ids = self._tokenizer.encode(asked.prompt, asked.add_special_tokens)
        else:
            ids = self._tokenizer.render(
                asked.messages or [],
                asked.tools,
                asked.add_generation_prompt,
                asked.chat_template_kwargs,
            )
        most = self._settings.limits.max_context
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": most})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat."""
        asked = parse(AskedChat, await _json(request))
        ids = self._tokenizer.render(
            asked.messages, asked.tools, asked.add_generation_prompt, asked.chat_template_kwargs
        )
        limit = asked.max_completion_tokens or asked.max_tokens
        return await self._generate(request, asked, [ids], limit)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Continue texts or ids."""
        asked = parse(AskedCompletion, await _json(request))
        prompts = [
            self._tokenizer.encode(p, asked.add_special_tokens) if isinstance(p, str) else list(p)
            for p in asked.prompts
        ]
        return await self._generate(request, asked, prompts, asked.max_tokens)

    async def update_weights(self, request: web.Request) -> web.Response:
        """Load other weights once the running sequences are done; all of them or none."""
        asked = parse(AskedUpdate, await _json(request))
        folder = Path(asked.weights_path).resolve()
        if not any(folder.is_relative_to(root) for root in self._roots):
            message = f"{folder} is not below a folder named by --weights-root"
            raise ApiError(400, message, "path_not_allowed", "weights_path")
        deadline = time.monotonic() + _UPDATE_WAIT_S
        update = WeightUpdate(str(folder), asked.weight_version, deadline)
        self._engine.submit(update)
        try:
            version = await asyncio.wait_for(
                asyncio.wrap_future(update.future), _UPDATE_WAIT_S + _UPDATE_LOAD_S
            )
        except ConfigError as error:
            raise ApiError(400, str(error), "weights_do_not_fit", "weights_path") from error
        except TimeoutError as error:
            message = f"the weights were not loaded within {_UPDATE_WAIT_S:.0f} s: {error}"
            raise ApiError(503, message, "busy") from error
        return web.json_response({"weight_version": version})

    async def _generate(
        self, http: web.Request, asked: Asked, prompts: list[list[int]], limit: int | None
    ) -> web.StreamResponse:
        name = self._settings.served_name
        if asked.model not in ("", name):
            message = f"the model {asked.model!r} is not served here, only {name!r}"
            raise ApiError(404, message, "model_not_found", "model")
        shape = Shape(asked, name, self._tokenizer, prompts)
        requests = self._requests(asked, prompts, limit)
        futures: list[Future[Any]] = [request.future for request in requests]
        try:
            if asked.stream:
                return await self._stream(http, shape, requests)
            for request in requests:
                self._engine.submit(request)
            results = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
            return web.json_response(shape.answer(results))
        finally:
            # A client that went away, or an error in one of several: nobody wants the rest.
            for future in futures:
                future.cancel()

    def _requests(
        self, asked: Asked, prompts: list[list[int]], limit: int | None
    ) -> list[GenerationRequest]:
        if not 1 <= len(prompts) * asked.n <= MOST_SEQUENCES:
            message = f"prompts times n must be between 1 and {MOST_SEQUENCES}"
            raise ApiError(400, message, "invalid_value", "n")
        if self._engine.counters.waiting > _MOST_WAITING:
            raise ApiError(503, "too many requests are waiting; try again later", "busy")
        vocab, most = self._engine.vocab_size, self._settings.limits.max_context
        seed = self._seeds.getrandbits(63) if asked.seed is None else asked.seed
        requests = []
        for ids in prompts:
            if not ids:
                raise ApiError(400, "the prompt is empty", "invalid_value", "prompt")
            if min(ids) < 0 or max(ids) >= vocab:
                message = f"token ids must be between 0 and {vocab - 1}"
                raise ApiError(400, message, "invalid_value", "prompt")
            params = asked.sampling(tokens_that_fit(len(ids), limit, most))
            requests.append(GenerationRequest(tuple(ids), params, asked.n, seed))
        return requests

    async def _stream(
        self, http: web.Request, shape: Shape, requests: list[GenerationRequest]
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        streams = [ChoiceStream(shape, i) for i in range(len(requests) * shape.asked.n)]
        sampled = 0
        try:
            async for place, event in self._events(requests):
                sampled += 1
                chunk = streams[place * shape.asked.n + event.index].chunk(event)
                if chunk is not None:
                    await _send(response, chunk)
            if shape.asked.stream_options.include_usage:
                usage = shape.usage(sampled)
                await _send(response, {**shape.head(chunk=True), "choices": [], "usage": usage})
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
        self, requests: list[GenerationRequest]
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
            self._engine.submit(request)
        open_requests = len(requests)
        while open_requests:
            place, event = await events.get()
            if event is not None:
                yield place, event
                continue
            open_requests -= 1
            requests[place].future.result()


async def _json(request: web.Request) -> Any:
    if request.content_type != "application/json":
        raise ApiError(400, "the Content-Type must be application/json", "invalid_body")
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "invalid_body") from None


async def _send(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(body)}\n\n".encode())
