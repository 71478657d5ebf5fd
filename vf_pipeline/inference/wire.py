"""What goes over the wire: a request as plain JSON values.

Environments put SDK objects (tool calls), dict subclasses and text with lone surrogates (half an
emoji, cut by a token limit) into their messages; a server must get none of these.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_ABSENT = {"NotGiven", "Omit"}
_ATOMS = (bool, int, float, type(None))


def request_body(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's fields as JSON values; fields that are None or "not given" are left out.

    Args:
        values: fields by name; those of ``extra_body`` are merged in last, as the SDK does.
    """
    extra = values.get("extra_body") or {}
    merged = {**{key: value for key, value in values.items() if key != "extra_body"}, **extra}
    return {
        str(key): plain(value)
        for key, value in merged.items()
        if value is not None and type(value).__name__ not in _ABSENT
    }


def plain(value: Any) -> Any:
    """Return a value as JSON values; lone surrogates become U+FFFD."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_none=True))
    return value


def whole_text(text: str) -> str:
    """Return a text that can be encoded: lone surrogates become U+FFFD, pairs one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
