"""An engine's HTTP routes: OpenAI's, and vLLM's where OpenAI has no word.

Deliberately lacks embeddings, tool-call parsing and structured output: the client parses what the
model wrote.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.requests import (
    EngineLimits,
    GenerationRequest,
    SamplingEngine,
    WeightUpdate,
)
from vf_pipeline.serving.http.access import explain_errors, guard_access
from vf_pipeline.serving.http.errors import ApiError
from vf_pipeline.serving.http.requests import (
    MOST_SEQUENCES,
    ChatRequest,
    CompletionRequest,
    SamplingRequest,
    TokenizeRequest,
    UpdateWeightsRequest,
    parse,
    tokens_that_fit,
)
from vf_pipeline.serving.http.responses import Responder
from vf_pipeline.serving.http.streaming import stream_answer
from vf_pipeline.tokens.messages import template_message
from vf_pipeline.tokens.tokenizer import ChatTokenizer

# Room for the largest batch of long prompts as JSON; aiohttp's own limit is 1 MB.
_MOST_BODY_BYTES = 16 << 20
# Samples that wait in memory, 8 of the largest requests: more are told to come again.
_MOST_WAITING = 8192
# First the running sequences end, then files are read. The sum stays below the 150 s that the run's
# own client waits (backends/builtin.py), so that it hears our reason.
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


class Routes:
    """The routes, over one engine."""

    def __init__(
        self, engine: SamplingEngine, tokenizer: ChatTokenizer, settings: ServerSettings
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._settings = settings
        # Resolved on both sides: neither ".." nor a link leads out of a root.
        self._roots = [root.resolve() for root in settings.weights_roots]
        # Requests without a seed get theirs from the server's: a server that is asked the same in
        # the same order answers the same.
        self._seeds = random.Random(settings.seed)
        self._started = int(time.time())

    def app(self, api_key: str = "") -> web.Application:
        """Return the application."""
        # In this order: the guard's refusals are told in OpenAI's form as well.
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
        asked = parse(TokenizeRequest, await _json(request))
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give either prompt or messages", "invalid_value", "prompt")
        if asked.prompt is not None:
            ids = self._tokenizer.encode(asked.prompt, asked.add_special_tokens)
        else:
            ids = _chat_ids(self._tokenizer, asked, asked.messages or [])
        most = self._settings.limits.max_context
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": most})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat."""
        asked = parse(ChatRequest, await _json(request))
        ids = _chat_ids(self._tokenizer, asked, asked.messages)
        # The newer name of the two wins.
        limit = asked.max_completion_tokens or asked.max_tokens
        return await self._generate(request, asked, [ids], limit)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Continue texts or ids."""
        asked = parse(CompletionRequest, await _json(request))
        prompts = [
            self._tokenizer.encode(p, asked.add_special_tokens) if isinstance(p, str) else list(p)
            for p in asked.prompts
        ]
        return await self._generate(request, asked, prompts, asked.max_tokens)

    async def update_weights(self, request: web.Request) -> web.Response:
        """Load other weights once the running sequences are done; all of them or none."""
        asked = parse(UpdateWeightsRequest, await _json(request))
        folder = Path(asked.weights_path).resolve()
        if not any(folder.is_relative_to(root) for root in self._roots):
            message = f"{folder} is not below a folder named by --weights-root"
            raise ApiError(400, message, "path_not_allowed", "weights_path")
        deadline = time.monotonic() + _UPDATE_WAIT_S
        update = WeightUpdate(str(folder), asked.weight_version, deadline)
        self._engine.submit(update)
        try:
            # A cancelled wait cancels the engine's future too, and the update is dropped.
            version = await asyncio.wait_for(
                asyncio.wrap_future(update.future), _UPDATE_WAIT_S + _UPDATE_LOAD_S
            )
        except ConfigError as error:
            raise ApiError(400, str(error), "weights_do_not_fit", "weights_path") from error
        except TimeoutError as error:
            message = f"the weights were not loaded in time: {error or 'loading took too long'}"
            raise ApiError(503, message, "busy") from error
        return web.json_response({"weight_version": version})

    async def _generate(
        self, http: web.Request, asked: SamplingRequest, prompts: list[list[int]], limit: int | None
    ) -> web.StreamResponse:
        name = self._settings.served_name
        if asked.model not in ("", name):
            message = f"the model {asked.model!r} is not served here, only {name!r}"
            raise ApiError(404, message, "model_not_found", "model")
        responder = Responder(asked, name, self._tokenizer, prompts)
        requests = self._requests(asked, prompts, limit)
        futures: list[Future[Any]] = [request.future for request in requests]
        try:
            if asked.stream:
                return await stream_answer(http, responder, requests, self._engine)
            for request in requests:
                self._engine.submit(request)
            results = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
            return web.json_response(responder.answer(results))
        finally:
            # A client that went away, or an error in one of several: nobody wants the rest.
            for future in futures:
                future.cancel()

    def _requests(
        self, asked: SamplingRequest, prompts: list[list[int]], limit: int | None
    ) -> list[GenerationRequest]:
        if not 1 <= len(prompts) * asked.n <= MOST_SEQUENCES:
            message = f"prompts times n must be between 1 and {MOST_SEQUENCES}"
            raise ApiError(400, message, "invalid_value", "n")
        if self._engine.counters.waiting > _MOST_WAITING:
            raise ApiError(503, "too many requests are waiting; try again later", "busy")
        vocab, most = self._engine.vocab_size, self._settings.limits.max_context
        requests = []
        # All are checked before any is submitted: an error in one must not cost the others' work.
        for ids in prompts:
            if not ids:
                raise ApiError(400, "the prompt is empty", "invalid_value", "prompt")
            if min(ids) < 0 or max(ids) >= vocab:
                message = f"token ids must be between 0 and {vocab - 1}"
                raise ApiError(400, message, "invalid_value", "prompt")
            params = asked.sampling(tokens_that_fit(len(ids), limit, most))
            # Each prompt draws for itself: with one seed, equal prompts would get equal samples.
            seed = self._seeds.getrandbits(63) if asked.seed is None else asked.seed
            requests.append(GenerationRequest(tuple(ids), params, asked.n, seed))
        return requests


def _chat_ids(
    tokenizer: ChatTokenizer,
    asked: ChatRequest | TokenizeRequest,
    messages: Sequence[dict[str, Any]],
) -> list[int]:
    """Return the ids of a chat.

    Raises:
        ApiError: 400 when a message has no text, or the template refuses the chat.
    """
    try:
        # Here and not in the renderer alone, so that the error names the argument.
        plain = [template_message(message) for message in messages]
    except ConfigError as error:
        raise ApiError(400, f"messages: {error}", "invalid_value", "messages") from error
    try:
        return tokenizer.render(
            plain, asked.tools, asked.add_generation_prompt, asked.chat_template_kwargs
        )
    except ConfigError as error:
        raise ApiError(400, str(error), "chat_template") from error


async def _json(request: web.Request) -> Any:
    # A page's form cannot send this type, and its script only after a preflight that nothing here
    # answers: see access.py.
    if request.content_type != "application/json":
        raise ApiError(400, "the Content-Type must be application/json", "invalid_body")
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "invalid_body") from None
