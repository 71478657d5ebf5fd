"""TOML files and overrides to settings, with errors that name the file, the key and the bound."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from vf_pipeline.errors import ConfigError, UnknownNameError

C = TypeVar("C", bound=BaseModel)


def load_config(
    cls: type[C],
    paths: list[str | Path],
    overrides: list[str] | None = None,
    *,
    values: dict[str, Any] | None = None,
) -> C:
    """Return the settings read from TOML files, left to right, then overrides "a.b=value".

    Args:
        cls: the settings' model.
        paths: TOML files; a later one wins.
        overrides: lines of the form key=value; they win over the files.
        values: settings that are values already, as a form has them; files and lines win over them.

    Raises:
        ConfigError: a file is missing or no TOML, or a value does not fit; names file and key.
        UnknownNameError: a key that no setting has, with the closest one.
    """
    merged: dict[str, Any] = dict(values or {})
    for path in paths:
        merged = _merge(merged, _read_toml(Path(path)))
    merged = _merge(merged, _merged_overrides(overrides or []))
    lines = _merged_overrides(overrides or [])
    files = ", ".join(str(path) for path in paths) or "the settings"
    return validate(cls, merged, where=lambda key: "the overrides" if _holds(lines, key) else files)


def validate(
    cls: type[C], values: dict[str, Any], where: str | Callable[[tuple[str, ...]], str]
) -> C:
    """Return ``values`` as settings; errors name the dotted key, the value and the bound.

    Args:
        cls: the settings' model.
        values: nested values.
        where: where they are from, for messages; or a function from a key's parts to that.

    Raises:
        ConfigError: a value does not fit, or a key is unknown.
    """
    _check_keys(cls, values, "")
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        parts = tuple(str(part) for part in first["loc"])
        key, place = ".".join(parts) or "(settings)", where(parts) if callable(where) else where
        raise ConfigError(
            f"config key {key!r} in {place}: {first['msg']}, got {first.get('input')!r}",
            "correct the value",
        ) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file {str(path)!r}", "see configs/ for examples") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"override {text!r} is not of the form key=value", "such as grpo.lr=1e-6")
    try:
        value = tomllib.loads(f"v = {raw.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _merged_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for override in overrides:
        merged = _merge(merged, _parse_override(override))
    return merged


def _holds(values: Any, parts: tuple[str, ...]) -> bool:
    """Return whether nested values hold something at a key, or where its way ends."""
    for part in parts:
        if not isinstance(values, dict):
            return True
        if part not in values:
            return False
        values = values[part]
    return bool(parts)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        out[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def _check_keys(cls: type[BaseModel], values: dict[str, Any], prefix: str) -> None:
    for key, value in values.items():
        known = cls.model_fields.get(key)
        if known is None:
            names = [prefix + name for name in cls.model_fields]
            raise UnknownNameError("config key", prefix + key, names)
        inner = known.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, dict):
            _check_keys(inner, value, f"{prefix}{key}.")
