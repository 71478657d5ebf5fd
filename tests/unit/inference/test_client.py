"""The client against a real HTTP server in the same event loop."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from vf_pipeline.errors import (
    AuthError,
    ConfigError,
    EmptyResponseError,
    MalformedResponseError,
    OverlongPromptError,
    ProviderError,
    RateLimitError,
    UnreachableError,
)
from vf_pipeline.inference.client import Client
from vf_pipeline.inference.endpoints import Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"},
            "token_ids": [5, 6],
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    "prompt_token_ids": [1, 2, 3],
}


class Server:
    """Answers each request with the next handler of a script; the last one stays."""

    def __init__(self, script: list[Handler]) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = 0
        self.peak = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json() if request.can_read_body else {})
        self.times.append(time.monotonic())
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            turn = min(len(self.requests), len(self.script)) - 1
            return await self.script[turn](request)
        finally:
            self.in_flight -= 1


@contextlib.asynccontextmanager
async def serving(*script: Handler) -> AsyncIterator[tuple[Server, str]]:
    server = Server(list(script))
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield server, f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


def reply(
    body: Any, status: int = 200, headers: dict[str, str] | None = None, kind: str = ""
) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        kind_ = kind or ("text/html" if isinstance(body, str) else "application/json")
        return web.Response(text=text, status=status, headers=headers, content_type=kind_)

    return handler


def error_reply(status: int, message: str, **headers: str) -> Handler:
    fixed = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"error": {"message": message, "type": "x", "code": None}}
    return reply(body, status, fixed)


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response(text="too late")


async def cut_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Length": "500", "Content-Type": "application/json"}
    )
    await response.prepare(request)
    await response.write(b'{"id": "c1", "choi')
    assert request.transport is not None
    request.transport.close()
    return response


def ask(
    script: list[Handler], *, requests: int = 1, options: dict[str, Any] | None = None, **kw: Any
) -> tuple[Any, Server]:
    """Send chat requests to a scripted server; return the answer or error, and the server."""
    kw = {"backoff_s": 0.001, "request_timeout_s": 5.0, **kw}
    key_var = kw.pop("api_key_var", "")

    async def main() -> tuple[Any, Server]:
        async with serving(*script) as (server, url):
            async with Client(Endpoint(url, "m", key_var), **kw) as client:
                calls = [
                    client.chat.completions.create(model="m", messages=MESSAGES, **(options or {}))
                    for _ in range(requests)
                ]
                results = await asyncio.gather(*calls, return_exceptions=True)
            return results[0], server

    return asyncio.run(main())


def test_an_answer_keeps_what_the_server_adds() -> None:
    answer, server = ask(
        [reply(CHAT)],
        options={
            "n": 3, "seed": 7, "top_k": 5, "stop": None, "max_tokens": 8,
            "extra_body": {"return_token_ids": True},
        },
    )  # fmt: skip
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].token_ids == [5, 6]
    assert answer.prompt_token_ids == [1, 2, 3]
    assert answer.usage.total_tokens == 5
    assert server.requests == [
        {"model": "m", "messages": MESSAGES, "n": 3, "seed": 7, "top_k": 5, "max_tokens": 8,
         "return_token_ids": True}
    ]  # fmt: skip


def test_completions_take_token_ids_and_models_are_listed() -> None:
    completion = {
        "id": "c", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "text": "x", "token_ids": [9]}],
    }  # fmt: skip
    models = {"object": "list", "data": [{"id": "m", "object": "model"}]}

    async def main() -> tuple[Any, Any, Server]:
        async with (
            serving(reply(completion), reply(models)) as (server, url),
            Client(Endpoint(url, "m")) as client,
        ):
            done = await client.completions.create(model="m", prompt=[1, 2], logprobs=0)
            return done, await client.models.list(), server

    done, listed, server = asyncio.run(main())
    assert done.choices[0].token_ids == [9]
    assert server.requests[0] == {"model": "m", "prompt": [1, 2], "logprobs": 0}
    assert [model.id for model in listed.data] == ["m"]


def test_429_waits_as_long_as_the_server_asks() -> None:
    answer, server = ask([error_reply(429, "slow down", Retry_After="1"), reply(CHAT)])
    assert answer.choices[0].message.content == "hello"
    assert len(server.requests) == 2
    assert server.times[1] - server.times[0] >= 1.0


def test_a_pause_longer_than_the_budget_is_not_waited_for() -> None:
    started = time.monotonic()
    error, server = ask([error_reply(429, "slow down", Retry_After="3600")])
    assert isinstance(error, RateLimitError)
    assert "slow down" in str(error)
    assert len(server.requests) == 1
    assert time.monotonic() - started < 5


def test_an_exhausted_quota_is_not_retried() -> None:
    body = {"error": {"message": "no money", "type": "x", "code": "insufficient_quota"}}
    error, server = ask([reply(body, 429)])
    assert isinstance(error, RateLimitError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_passing_errors_are_retried(status: int) -> None:
    answer, server = ask([error_reply(status, "oops"), reply(CHAT)])
    assert answer.choices[0].message.content == "hello"
    assert len(server.requests) == 2


def test_retries_are_bounded() -> None:
    error, server = ask([error_reply(500, "boom")], max_retries=3)
    assert type(error) is ProviderError
    assert len(server.requests) == 4
    assert "500" in str(error) and "boom" in str(error) and "4 times" in str(error)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 512 tokens. However, you requested 900"),
        (400, "The decoder prompt (length 900) is longer than the maximum model length of 512"),
        (413, "prompt has 900 tokens, 512 fit"),
    ],
)
def test_a_prompt_that_does_not_fit_is_named(status: int, message: str) -> None:
    error, server = ask([error_reply(status, message)])
    assert isinstance(error, OverlongPromptError)
    assert message in str(error)
    assert len(server.requests) == 1


def test_other_bad_requests_are_not_retried() -> None:
    error, server = ask([error_reply(400, "temperature must be positive")])
    assert type(error) is ProviderError
    assert "temperature must be positive" in str(error)
    assert len(server.requests) == 1


def test_404_asks_for_the_model() -> None:
    error, _ = ask([error_reply(404, "no model m")])
    assert type(error) is ProviderError
    assert "is 'm' a model of this server?" in str(error)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_but_never_shown(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SOME_KEY", "sk-secret-0123456789")
    error, server = ask(
        [error_reply(status, "bad key sk-secret-0123456789")], api_key_var="SOME_KEY"
    )
    assert isinstance(error, AuthError)
    assert server.headers[0]["Authorization"] == "Bearer sk-secret-0123456789"
    assert "SOME_KEY" in str(error)
    assert "sk-secret" not in str(error) + repr(error) + caplog.text
    assert len(server.requests) == 1


def test_a_missing_key_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    error, _ = ask([error_reply(401, "who are you")], api_key_var="SOME_KEY")
    assert "SOME_KEY is not set" in str(error)
    error, _ = ask([error_reply(401, "who are you")])
    assert "api_key_var" in str(error)


def test_another_services_key_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    _, server = ask([reply(CHAT)])
    assert "sk-secret" not in str(server.headers)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("<html>gateway</html>", "text/html"),
        ("{not json", "application/json"),
        ("[1, 2]", "application/json"),
        ("null", "application/json"),
        ('{"hello": 1}', "application/json"),
        ('{"choices": [{"index": 0}]}', "application/json"),
        ('{"choices": ["text"]}', "application/json"),
    ],
)
def test_what_is_no_answer_is_malformed(body: str, kind: str) -> None:
    error, server = ask([reply(body, kind=kind)])
    assert isinstance(error, MalformedResponseError), error
    assert "127.0.0.1" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("choices", [[], None])
def test_an_answer_without_choices_is_asked_for_again(choices: Any) -> None:
    empty = {**CHAT, "choices": choices}
    error, server = ask([reply(empty)], max_retries=2)
    assert isinstance(error, EmptyResponseError)
    assert len(server.requests) == 3
    answer, _ = ask([reply(empty), reply(CHAT)])
    assert answer.choices[0].message.content == "hello"


def test_an_error_inside_a_successful_answer_is_an_error() -> None:
    error, _ = ask([reply({"error": {"message": "upstream is down"}})])
    assert type(error) is ProviderError
    assert "upstream is down" in str(error)


def test_a_cut_body_is_asked_for_again() -> None:
    answer, server = ask([cut_body, reply(CHAT)])
    assert answer.choices[0].message.content == "hello"
    assert len(server.requests) == 2
    error, _ = ask([cut_body], max_retries=0)
    assert type(error) is ProviderError
    assert "broke" in str(error)


def test_a_server_that_never_answers_is_given_up() -> None:
    started = time.monotonic()
    error, server = ask([never], request_timeout_s=0.1, max_retries=1)
    assert type(error) is ProviderError
    assert "did not answer within 0.1 s" in str(error)
    assert len(server.requests) == 2
    assert time.monotonic() - started < 3


def test_nobody_at_the_address() -> None:
    async def main() -> Exception:
        async with serving(reply(CHAT)) as (_, url):
            pass
        async with Client(Endpoint(url, "m"), backoff_s=0.001) as client:
            with pytest.raises(UnreachableError) as caught:
                await client.chat.completions.create(model="m", messages=MESSAGES)
        assert url in str(caught.value)
        return caught.value

    text = str(asyncio.run(main()))
    assert text.startswith("cannot reach http://127.0.0.1:")
    assert "connection refused" in text and "is the server running?" in text


def test_an_unknown_host_is_unreachable() -> None:
    async def main() -> None:
        endpoint = Endpoint("http://no-such-host.invalid/v1", "m")
        async with Client(endpoint, max_retries=0, connect_timeout_s=2.0) as client:
            with pytest.raises(UnreachableError, match=r"no-such-host\.invalid"):
                await client.chat.completions.create(model="m", messages=MESSAGES)

    asyncio.run(main())


def test_requests_in_flight_are_bounded() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.json_response(CHAT)

    _, server = ask([slow], requests=12, max_concurrent=3)
    assert len(server.requests) == 12
    assert server.peak == 3


def test_a_cancelled_request_frees_its_slot() -> None:
    async def main() -> None:
        async with (
            serving(never, reply(CHAT)) as (_, url),
            Client(Endpoint(url, "m"), max_concurrent=1) as client,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.chat.completions.create(model="m", messages=MESSAGES)
            answer = await client.chat.completions.create(model="m", messages=MESSAGES)
            assert answer.choices[0].message.content == "hello"

    asyncio.run(main())


def test_streams_are_refused() -> None:
    error, _ = ask([reply(CHAT)], options={"stream": True})
    assert isinstance(error, ConfigError)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host/v1", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Endpoint(url, "m")


def test_an_endpoint_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-0123456789")
    endpoint = Endpoint("http://h/v1/", "m", "SOME_KEY")
    assert endpoint.base_url == "http://h/v1"
    assert endpoint.api_key() == "sk-secret-0123456789"
    assert "sk-secret" not in repr(endpoint)
    with pytest.raises(ConfigError) as caught:
        Endpoint("http://me:sk-secret@h/v1", "m")
    assert "sk-secret" not in str(caught.value)
