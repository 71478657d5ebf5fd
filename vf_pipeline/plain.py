"""Values as plain JSON, one way for all: requests, journals, results.

Environments put SDK objects, dict subclasses, numbers of numeric libraries and text with half
surrogates (an emoji cut by a token limit) into what they hand over. What differs between the users
of this module is what becomes of text, of numbers and of the rest; they say so.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any


def keep(value: Any) -> Any:
    """Return a value as it is."""
    return value


def plain(
    value: Any,
    *,
    text: Callable[[str], Any] = keep,
    number: Callable[[float], Any] = keep,
    other: Callable[[Any], Any] = keep,
) -> Any:
    """Return a value as JSON values.

    Mappings become dicts, tuples lists, pydantic objects their fields that are set, and scalars and
    arrays of numeric libraries Python's own.

    Args:
        value: what is converted; it is not changed.
        text: what is made of each text.
        number: what is made of each float.
        other: what is made of what is none of these.

    >>> plain({"a": (1, 2.5, float("nan"))}, number=null_if_unknown)
    {'a': [1, 2.5, None]}
    """
    # Before int, which bool is a kind of.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        # Enums of int and other subclasses become the number itself.
        return int(value)
    if isinstance(value, float):
        # numpy's float64 is a float, and is made a plain one.
        return number(float(value))
    how: dict[str, Any] = {"text": text, "number": number, "other": other}
    if isinstance(value, Mapping):
        return {str(key): plain(item, **how) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, **how) for item in value]
    if hasattr(value, "model_dump"):
        # Without nulls: an SDK's object has all fields of its type, most of them null.
        return plain(value.model_dump(exclude_none=True), **how)
    # Arrays and scalars of numpy and torch, without importing either.
    if hasattr(value, "tolist"):
        return plain(value.tolist(), **how)
    return other(value)


def whole_text(text: str) -> str:
    """Return a text that can be encoded: lone surrogates become U+FFFD, pairs one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # UTF-16 is where two halves are one character: pairs come out whole, lone ones are
        # replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def null_if_unknown(value: float) -> float | None:
    """Return a number, or None for what JSON has no number for: NaN and the infinities."""
    return value if math.isfinite(value) else None


def named_if_unknown(value: float) -> float | str:
    """Return a number, or its name: "NaN", "Infinity" and "-Infinity" come back as numbers."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
