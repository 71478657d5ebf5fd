"""Who may call the server, and how its errors are told: two aiohttp middlewares."""

import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from vf_pipeline.errors import VfError
from vf_pipeline.serving.http.errors import ApiError

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def guard_access(api_key: str) -> Any:
    """Return the middleware that checks the key, or without one that the call is local.

    A web page may send requests to loopback in its visitor's name: under a foreign Host (DNS
    rebinding), or as a form. The first is refused here, the second by the JSON content type.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if api_key:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            # Bytes, for compare_digest takes no text beyond ASCII. /health needs no key: whoever
            # starts the server asks it whether it is ready, and it tells nothing of the model.
            same = hmac.compare_digest(given.encode(errors="surrogateescape"), api_key.encode())
            if not same and request.path != "/health":
                raise ApiError(401, "the API key is missing or wrong", "invalid_api_key")
        elif not is_loopback(urlsplit(f"//{request.host}").hostname or ""):
            raise ApiError(403, f"this server is not {request.host}", "foreign_host")
        return await handler(request)

    return guard


@web.middleware
async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in OpenAI's form."""
    try:
        return await handler(request)
    except ApiError as error:
        failure = error
    except web.HTTPException as error:
        text = f"{error.reason}: {request.method} {request.path}"
        failure = ApiError(error.status, text, _CODES.get(error.status, "http_error"))
    except VfError as error:
        failure = ApiError(500, str(error), "engine_failed")
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        failure = ApiError(500, f"internal error: {type(error).__name__}", "internal")
    # 503 means busy: the client's retry waits at least as long as it is told.
    headers = {"Retry-After": "1"} if failure.status == 503 else {}
    return web.json_response(failure.body(), status=failure.status, headers=headers)
