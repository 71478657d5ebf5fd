"""Engine control: is an engine alive, which weights does it serve, and give it others.

One client for whoever starts an engine and for whoever trains beside it. Synchronous, on urllib
alone: both ask seldom, and neither has an event loop.
"""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf_pipeline.errors import AuthError, ProviderError, UnreachableError
from vf_pipeline.inference.diagnosis import quote
from vf_pipeline.inference.endpoints import Endpoint

# Short: asked between other work, and a late answer counts as alive anyhow.
_ALIVE_TIMEOUT_S = 2.0
_LOOK_AT_LOG = "see the engine's log"


class EngineControl:
    """The control routes of an engine, which stand beside ``/v1``.

    Example::

        control = EngineControl("http://127.0.0.1:8000/v1")
        control.load_weights(Path("runs/demo/weights/v3"), "3")
        assert control.weight_version() == "3"

    Args:
        base_url: the engine's URL, with or without ``/v1``.
        api_key_var: environment variable that holds the key, if one is needed.
        timeout_s: how long one request may take, in seconds.
    """

    def __init__(self, base_url: str, api_key_var: str = "", timeout_s: float = 120.0) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self.timeout_s = timeout_s
        self._key = os.environ.get(api_key_var, "") if api_key_var else ""

    def check_alive(self) -> None:
        """Make sure that somebody listens. An engine too busy to answer counts as alive.

        Raises:
            UnreachableError: the connection is refused.
        """
        try:
            self._open("/health", None, _ALIVE_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            # Any answer is life, an error status too. (HTTPError is an OSError: it must come
            # first.)
            error.close()
        except OSError as error:
            # urllib wraps what the socket raised. A refusal is certain; a timeout only says busy.
            if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                raise UnreachableError(
                    f"the engine at {self.root} is gone: connection refused",
                    "see its log, then run the same command again",
                ) from None

    def health(self) -> dict[str, Any]:
        """Return what the engine says of its load: sequences that run and wait, tokens so far.

        Raises:
            ProviderError: it does not answer, or answers that it is not well.
        """
        return self._ask("/health", None, self.timeout_s)

    def weight_version(self, timeout_s: float | None = None) -> str:
        """Return the version of the weights that are served.

        Args:
            timeout_s: how long this request may take, in seconds; None is the client's own.

        Raises:
            ProviderError: the engine does not say it.
        """
        answer = self._ask("/weight_info", None, timeout_s or self.timeout_s)
        # As text: other servers count versions in numbers.
        return str(answer.get("weight_version", ""))

    def load_weights(self, folder: str | Path, version: str) -> None:
        """Make the engine serve the weights in a folder, and make sure that it does.

        Raises:
            ProviderError: it refused, did not answer in time, or still serves others.
        """
        body = {"weights_path": str(Path(folder).absolute()), "weight_version": version}
        self._ask("/update_weights", body, self.timeout_s)
        # Asked again, not taken from the answer: this is what samples from now on.
        served = self.weight_version()
        if served != version:
            raise ProviderError(
                f"the engine at {self.root} serves weights {served!r} after it was given "
                f"version {version}",
                "is another run using the same engine?",
            )

    def _ask(self, route: str, body: Any, timeout_s: float) -> dict[str, Any]:
        """Return an engine's JSON object."""
        try:
            answer = json.loads(self._open(route, body, timeout_s))
        except urllib.error.HTTPError as error:
            hint = "only vf-serve has this route" if error.code == 404 else _LOOK_AT_LOG
            told = f"the engine at {self.root} answered {route} with"
            raise _refusal(error, told, hint) from None
        except TimeoutError:
            raise ProviderError(
                f"waited {timeout_s:.0f} s for {self.root}{route}", _LOOK_AT_LOG
            ) from None
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            kind = UnreachableError if isinstance(error, OSError) else ProviderError
            raise kind(
                f"the engine failed at {self.root}{route}: {cause}",
                "see its log, then run the same command again",
            ) from None
        if not isinstance(answer, dict):
            raise ProviderError(
                f"the engine at {self.root} answered {route} with {quote(str(answer))}",
                "only vf-serve has this route",
            )
        return answer

    def _open(self, route: str, body: Any, timeout_s: float) -> bytes:
        # The engine is a neighbour: never through a proxy.
        return _open(self.root + route, body, self._key, timeout_s, {})


def list_models(endpoint: Endpoint, timeout_s: float) -> list[str]:
    """Return the names of the models that any OpenAI-compatible server says it serves.

    Raises:
        AuthError: the key is missing or refused.
        UnreachableError: nobody answers.
        ProviderError: the answer is no list of models.
    """
    url = f"{endpoint.base_url}/models"
    key = endpoint.api_key() if endpoint.has_key else ""
    try:
        # None takes the proxies of the environment.
        proxies: dict[str, str] | None = {} if endpoint.is_loopback else None
        listing = json.loads(_open(url, None, key, timeout_s, proxies))
    except urllib.error.HTTPError as error:
        raise _refusal(error, f"{url} answered") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnreachableError(f"cannot reach {url}: {reason}", "is the server running?") from None
    if not isinstance(listing, dict):
        raise ProviderError(f"{url} answered something that is no JSON object")
    return [str(m.get("id")) for m in listing.get("data") or [] if isinstance(m, dict)]


def _open(
    url: str, body: Any, key: str, timeout_s: float, proxies: Mapping[str, str] | None
) -> bytes:
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    # An empty dict switches proxies off, None takes those of the environment.
    handler = urllib.request.ProxyHandler(None if proxies is None else dict(proxies))
    try:
        with urllib.request.build_opener(handler).open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except http.client.HTTPException as error:
        # A server that dies while it answers; urllib lets these through as they are.
        raise ConnectionError(f"the answer broke off: {error!r}") from error


def _refusal(error: urllib.error.HTTPError, told: str, hint: str = "") -> ProviderError:
    """Return an error status of a server as an error of ours."""
    with error:
        # Bounded: an error page of a proxy may be long.
        said = quote(error.read(2000).decode(errors="replace"))
    text = f"{told} {error.code}: {said}"
    if error.code in (401, 403):
        return AuthError(text, "check the key, and the variable that names it")
    return ProviderError(text, hint)
