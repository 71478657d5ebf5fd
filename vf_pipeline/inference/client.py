"""The one way in which a model is asked: bounded, patient for a while, and with errors that tell.

Looks like ``openai.AsyncOpenAI`` where environments touch it. Deliberately lacks streaming: a
rollout needs whole answers.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vf_pipeline.errors import ConfigError
from vf_pipeline.inference.diagnosis import diagnose
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.inference.retries import RetryPolicy
from vf_pipeline.inference.validation import check_choices, check_object
from vf_pipeline.inference.wire import request_body

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

_SHORTEST_BUDGET_S = 60.0
# The SDK's extras that are no part of the body.
_TRANSPORT_OPTIONS = {"extra_headers": "headers", "extra_query": "params"}


class Client:
    """An asynchronous client of one endpoint; use it in one event loop, and close it.

    Args:
        endpoint: the server, and the variable that holds its key.
        max_concurrent: most requests in flight; the connection pool is as large.
        request_timeout_s: longest wait for one answer, in seconds.
        max_retries: repetitions after 408, 429, 5xx, broken connections and empty answers.
        connect_timeout_s: longest wait for a connection, in seconds.
        backoff_s: pause before the first repetition, in seconds; doubles each time, with jitter.

    Example:
        >>> import asyncio
        >>> import vf_pipeline as vf
        >>> endpoint = vf.Endpoint("http://127.0.0.1:8000/v1", "my-model")
        >>> async def ask(question):
        ...     async with vf.Client(endpoint, max_retries=1) as client:
        ...         answer = await client.chat.completions.create(
        ...             model=endpoint.model,
        ...             messages=[{"role": "user", "content": question}],
        ...             max_tokens=8,
        ...         )
        ...     return answer.choices[0].message.content
        >>> asyncio.run(ask("What comes after 41?"))
        '42'
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        max_concurrent: int = 64,
        request_timeout_s: float = 120.0,
        max_retries: int = 4,
        connect_timeout_s: float = 10.0,
        backoff_s: float = 0.5,
    ) -> None:
        self.endpoint = endpoint
        self.request_timeout_s = request_timeout_s
        # One attempt that timed out leaves time for another as long.
        budget_s = max(_SHORTEST_BUDGET_S, 2.0 * request_timeout_s)
        self.policy = RetryPolicy(max_retries, backoff_s, budget_s=budget_s)
        self.chat = _Chat(self)
        self.completions = _Completions(self)
        self.models = _Models(self)
        self._slots = asyncio.Semaphore(max_concurrent)
        self._sdk = _make_sdk(endpoint, max_concurrent, request_timeout_s, connect_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._sdk.close()

    async def _ask(
        self, method: str, path: str, cast_to: Any, check: Callable[[Any], None], **values: Any
    ) -> Any:
        """Return the checked answer to one request, repeated while that can help.

        Raises:
            ProviderError: the server failed for good; the subclass says how.
        """
        timeout_s = float(values.pop("timeout", None) or self.request_timeout_s)
        options: dict[str, Any] = {
            name: values.pop(key) for key, name in _TRANSPORT_OPTIONS.items() if values.get(key)
        }
        kwargs = {"body": request_body(values)} if method == "post" else {}
        # The SDK's plain post: its typed methods refuse fields that are no OpenAI's
        # (return_token_ids, min_p).
        send = getattr(self._sdk, method)
        # A request keeps its slot while it waits to be repeated: that is what slows us down.
        async with self._slots:
            # From here, not from the call: waiting for a slot is our doing, not the server's.
            deadline = time.monotonic() + self.policy.budget_s
            for retry in itertools.count():
                allowed_s = min(timeout_s, max(deadline - time.monotonic(), 0.001))
                try:
                    # A bound on the whole attempt: the transport's are for each read, and a server
                    # that sends a byte now and then would hold us for ever.
                    async with asyncio.timeout(allowed_s):
                        answer = await send(path, cast_to=cast_to, options=options, **kwargs)
                    check(answer)
                    return answer
                # Not BaseException: a cancelled rollout ends here, and is not asked again.
                except Exception as error:
                    diagnosis, cause = diagnose(error, self.endpoint, allowed_s), error
                # Outside of the except block: what is raised there has one cause, and no chain of
                # attempts.
                await self.policy.pause_or_raise(diagnosis, cause, retry, deadline)

    def _check(self, part: str) -> Callable[[Any], None]:
        return lambda answer: check_choices(answer, self.endpoint.base_url, part)


class _Chat:
    def __init__(self, client: Client) -> None:
        self.completions = _ChatCompletions(client)


class _ChatCompletions:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, *, model: str, messages: Any, **options: Any) -> "ChatCompletion":
        """Return the answer to a chat; every further field goes to the server as it is.

        Raises:
            ProviderError: the server failed for good; the subclass says how.
            ConfigError: a stream was asked for.
        """
        from openai.types.chat import ChatCompletion

        _refuse_stream(options)
        check = self._client._check("message")
        answer = await self._client._ask(
            "post", "/chat/completions", ChatCompletion, check,
            model=model, messages=messages, **options,
        )  # fmt: skip
        assert isinstance(answer, ChatCompletion)
        return answer


class _Completions:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, *, model: str, prompt: Any, **options: Any) -> "Completion":
        """Return the completion of a text or of token ids; further fields go to the server.

        Raises:
            ProviderError: the server failed for good; the subclass says how.
            ConfigError: a stream was asked for.
        """
        from openai.types import Completion

        _refuse_stream(options)
        answer = await self._client._ask(
            "post", "/completions", Completion, self._client._check("text"),
            model=model, prompt=prompt, **options,
        )  # fmt: skip
        assert isinstance(answer, Completion)
        return answer


class _Models:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> Any:
        """Return the server's models: an object whose ``data`` lists them, each with an ``id``.

        Raises:
            ProviderError: the server failed for good; the subclass says how.
        """
        from openai.pagination import AsyncPage
        from openai.types import Model

        url = self._client.endpoint.base_url
        return await self._client._ask(
            "get", "/models", AsyncPage[Model], lambda answer: check_object(answer, url)
        )


def _refuse_stream(options: dict[str, Any]) -> None:
    if options.pop("stream", None):
        raise ConfigError("this client gives whole answers only", "remove stream=True")


def _make_sdk(
    endpoint: Endpoint, max_concurrent: int, request_timeout_s: float, connect_timeout_s: float
) -> "AsyncOpenAI":
    import httpx2
    from openai import AsyncOpenAI, DefaultAioHttpClient

    # asyncio.timeout bounds an attempt as a whole; these bound what can hang inside it.
    timeout = httpx2.Timeout(request_timeout_s + 5.0, connect=connect_timeout_s)
    # As many kept as used: a batch's next turn reuses the connections of the last.
    limits = httpx2.Limits(max_connections=max_concurrent, max_keepalive_connections=max_concurrent)
    transport = DefaultAioHttpClient(
        limits=limits, timeout=timeout, trust_env=not endpoint.is_loopback
    )
    return AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key(),
        # The policy above is the only one: two would multiply.
        max_retries=0,
        timeout=timeout,
        http_client=transport,
    )
