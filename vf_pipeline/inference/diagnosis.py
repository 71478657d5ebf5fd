"""What went wrong with a request: any exception of SDK and transport as one error of ours.

``diagnose`` also says whether asking again can help, and how long the server wants us to wait.
"""

import email.utils
import errno
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vf_pipeline.errors import (
    AuthError,
    EmptyResponseError,
    MalformedResponseError,
    OverlongPromptError,
    ProviderError,
    RateLimitError,
    UnreachableError,
)
from vf_pipeline.inference.endpoints import Endpoint

_LONGEST_QUOTE = 300
# The protocol has no error code for it that all use: the words of OpenAI, vLLM and others.
_OVERLONG = re.compile(
    r"maximum context length|context[ _]length|context window|max_model_len|maximum model length"
    r"|prompt is too long|input is too long|exceeds? the (?:available )?context",
    re.IGNORECASE,
)
_TRANSIENT = {408, 425, 429}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """An error, and what to make of it.

    ``retry_after_s`` is the pause that the server asked for, in seconds.
    """

    error: ProviderError
    retryable: bool = False
    retry_after_s: float | None = None


def diagnose(error: Exception, endpoint: Endpoint, timeout_s: float) -> Diagnosis:
    """Return what an exception raised by a request to ``endpoint`` means.

    Args:
        error: raised by the SDK, by its transport, or by our checks of the answer.
        endpoint: the server that was asked.
        timeout_s: how long the answer was waited for, in seconds.
    """
    import openai

    # Ours, of our checks of the answer. An empty one may come of an overload; one in a wrong form
    # comes again.
    if isinstance(error, ProviderError):
        return Diagnosis(error, retryable=isinstance(error, EmptyResponseError))
    if isinstance(error, openai.APIStatusError):
        return _from_status(error, endpoint)
    if isinstance(error, TimeoutError | openai.APIConnectionError):
        return _from_connection(error, endpoint, timeout_s)
    if isinstance(error, openai.APIResponseValidationError | ValueError):
        text = f"{endpoint.base_url} answered with something that is not JSON: {_brief(error)}"
        return Diagnosis(
            MalformedResponseError(text, "is this the URL of an OpenAI-compatible API?")
        )
    return Diagnosis(ProviderError(f"the request to {endpoint.base_url} failed: {_brief(error)}"))


def quote(text: str, secret: str = "") -> str:
    """Return text of a server fit for one line of a message: short, and without the key."""
    # A short placeholder ("EMPTY") would blot out words that were no key.
    if len(secret) >= 8:
        text = text.replace(secret, "***")
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE] + " …"


def _from_status(error: Any, endpoint: Endpoint) -> Diagnosis:
    status: int = error.status_code
    secret = endpoint.api_key() if endpoint.has_key else ""
    said = quote(_server_text(error), secret)
    text = f"{endpoint.base_url} answered {status}: {said}"
    if status in (401, 403):
        return Diagnosis(AuthError(text, _key_hint(endpoint)))
    # Some servers answer 422; 413 is a proxy's or vf-serve's bound on the body.
    if status == 413 or (status in (400, 422) and _OVERLONG.search(f"{said} {error.code}")):
        return Diagnosis(
            OverlongPromptError(text, "shorten the prompt, or raise the context limit")
        )
    wait = _retry_after(error.response.headers)
    if status == 429:
        # The same status for two things: too fast, which passes, and no money, which does not.
        spent = error.code == "insufficient_quota"
        hint = "the account's quota is used up" if spent else "lower max_concurrent"
        return Diagnosis(RateLimitError(text, hint), not spent, wait)
    hint = ""
    if status == 404:
        # Most servers hang their routes below /v1, and say the same of a route as of a model.
        v1 = "" if endpoint.base_url.endswith("/v1") else "does the URL lack /v1 at its end? "
        hint = f"{v1}is {endpoint.model!r} a model of this server?"
    return Diagnosis(ProviderError(text, hint), status in _TRANSIENT or status >= 500, wait)


def _server_text(error: Any) -> str:
    body = error.body
    if isinstance(body, Mapping):
        # OpenAI's word, FastAPI's (vLLM), and that of plain servers.
        inner = body.get("message") or body.get("detail") or body.get("error")
        if inner:
            return str(inner)
    return str(body or error.message)


def _key_hint(endpoint: Endpoint) -> str:
    if not endpoint.api_key_var:
        return "name the environment variable that holds its key with api_key_var"
    if not endpoint.has_key:
        return f"the environment variable {endpoint.api_key_var} is not set"
    return f"check the key in the environment variable {endpoint.api_key_var}"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause that a server asks for, in seconds: given as number, or as a date."""
    text = headers.get("retry-after", "")
    try:
        # OpenAI's own header, finer than the standard's whole seconds.
        return max(0.0, float(headers["retry-after-ms"]) / 1000.0)
    except (KeyError, ValueError):
        pass
    try:
        return max(0.0, float(text))
    except ValueError:
        date = email.utils.parsedate_tz(text)
        return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


def _from_connection(error: Exception, endpoint: Endpoint, timeout_s: float) -> Diagnosis:
    reason = _why_unreachable(error)
    if reason:
        text = f"cannot reach {endpoint.base_url}: {reason}"
        return Diagnosis(UnreachableError(text, "is the server running?"), retryable=True)
    if _timed_out(error):
        text = f"{endpoint.base_url} did not answer within {timeout_s:g} s"
        hint = "raise request_timeout_s, or lower max_tokens or max_concurrent"
        return Diagnosis(ProviderError(text, hint), retryable=True)
    text = f"the connection to {endpoint.base_url} broke: {_brief(_root(error))}"
    return Diagnosis(ProviderError(text, "did the server die?"), retryable=True)


def _why_unreachable(error: Exception) -> str:
    import aiohttp

    for cause in _chain(error):
        # asyncio joins the errors of several addresses (::1 and 127.0.0.1) into a plain OSError
        # that has them as text alone.
        if isinstance(cause, OSError) and cause.errno == errno.EHOSTUNREACH:
            return "no route to the host"
        if isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause):
            return "connection refused"
        if isinstance(cause, socket.gaierror | aiohttp.ClientConnectorDNSError):
            return "the host name is unknown"
        if isinstance(cause, aiohttp.ConnectionTimeoutError):
            return "no connection within the time limit"
        if isinstance(cause, aiohttp.ClientConnectorError):
            return quote(cause.strerror or str(cause))
    return ""


def _timed_out(error: Exception) -> bool:
    import aiohttp

    # The transport reports every broken connection as a timeout: only the first cause tells.
    broken = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError)
    causes = list(_chain(error))
    if any(isinstance(cause, broken) for cause in causes):
        return False
    return any(isinstance(cause, TimeoutError) for cause in causes)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    # Bounded, for causes can point at each other.
    while error is not None and seen < 20:
        yield error
        error = error.__cause__ or error.__context__
        seen += 1


def _root(error: BaseException) -> BaseException:
    return list(_chain(error))[-1]


def _brief(error: BaseException) -> str:
    return quote(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
