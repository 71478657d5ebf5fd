"""Where a model is served: a URL, a model name, and the name of the variable that holds the key."""

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from vf_pipeline.errors import ConfigError

# The SDK refuses an empty key; this is vLLM's word for none.
_NO_KEY = "EMPTY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server and the model that is asked there.

    The key itself is never kept: it is read from the environment when a client is made.

    Args:
        base_url: URL that routes hang below, usually ending with /v1; a trailing slash is dropped.
        model: name of the model, as the server knows it.
        api_key_var: environment variable that holds the key; empty for servers without one.

    Raises:
        ConfigError: the URL is no http(s) URL, or carries a password.
    """

    base_url: str
    model: str
    api_key_var: str = ""

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{self.base_url!r} is not the URL of a server",
                "give something like http://127.0.0.1:8000/v1",
            )
        # URLs are logged and recorded; a password in one would be, too.
        if parts.username or parts.password:
            raise ConfigError(
                f"the URL of {parts.hostname} carries a user name or password",
                "put the key into an environment variable and name it with api_key_var",
            )
        # The way to set a field of a frozen dataclass.
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))

    def api_key(self) -> str:
        """Return the key, or a placeholder where none is set: many local servers want none."""
        return (os.environ.get(self.api_key_var) if self.api_key_var else None) or _NO_KEY

    @property
    def has_key(self) -> bool:
        """Whether the environment holds a key for this server."""
        return self.api_key() != _NO_KEY

    @property
    def is_loopback(self) -> bool:
        """Whether the server runs on this very machine, where no proxy may step between."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")
