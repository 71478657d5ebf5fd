"""What goes over the wire: a request as plain JSON values that can be encoded."""

from collections.abc import Mapping
from typing import Any

from vf_pipeline.plain import plain, whole_text

# The SDK's marks for "not given", by name: importing it for two types would cost whoever only
# renders or journals.
_ABSENT = {"NotGiven", "Omit"}


def request_body(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's fields as JSON values; fields that are None or "not given" are left out.

    Args:
        values: fields by name; those of ``extra_body`` are merged in last, as the SDK does.
    """
    extra = values.get("extra_body") or {}
    merged = {**{key: value for key, value in values.items() if key != "extra_body"}, **extra}
    return {
        str(key): sendable(value)
        for key, value in merged.items()
        if value is not None and type(value).__name__ not in _ABSENT
    }


def sendable(value: Any) -> Any:
    """Return a value as JSON values; lone surrogates become U+FFFD."""
    return plain(value, text=whole_text)
