"""From a setting to where people give it: a command's option, or a field of another model.

Default, type, bounds and help are the setting's own, so that they are written once.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vf_pipeline.configs.settings import Settings


def same_field(settings: type[Settings], name: str, **changes: Any) -> Any:
    """Return a field like one of ``settings``, for the body of another model.

    Args:
        settings: the model that has the field.
        name: its name there.
        **changes: what differs, as arguments of pydantic's ``Field``: default, title, …

    >>> class Ours(Settings):
    ...     lr: float = same_field(GrpoSettings, "lr", title="Learning rate of GRPO")
    """
    described = settings.model_fields[name].asdict()
    attributes: dict[str, Any] = {
        key: value for key, value in described["attributes"].items() if value is not None
    }
    if "default" in changes:
        attributes.pop("default_factory", None)
    field: FieldInfo = Field(**(attributes | changes))
    field.metadata = list(described["metadata"])
    return field


def add_option(
    to: argparse._ActionsContainer,
    settings: type[Settings],
    name: str,
    *flags: str,
    **more: Any,
) -> None:
    """Add the option of one setting to a command's parser, or to a group of it.

    A setting without a default becomes a positional argument; a bool becomes a switch; a tuple an
    option that may be given again. What does not fit the type or the bounds is a usage error.

    Args:
        to: the parser or the group.
        settings: the model that has the setting.
        name: its name there, and the name of the parsed value.
        *flags: spellings; without any, ``--name``.
        **more: further arguments of ``add_argument``, such as metavar.
    """
    field = settings.model_fields[name]
    more["help"] = _help(field)
    if field.is_required():
        to.add_argument(name, type=_checked(field.annotation, field.metadata), **more)
        return
    if not flags or flags[0].startswith("-"):
        more.setdefault("dest", name)
    more["default"] = field.default
    if field.annotation is bool:
        more["action"] = "store_true"
    elif get_origin(field.annotation) is tuple:
        more |= {"action": "append", "default": list(field.default)}
        more["type"] = _checked(_item(field), [])
    else:
        more["type"] = _checked(field.annotation, field.metadata)
    to.add_argument(*(flags or (f"--{name.replace('_', '-')}",)), **more)


def _help(field: FieldInfo) -> str:
    text = (field.description or "").rstrip(".")
    shown = field.default not in (PydanticUndefined, None, "", ()) and field.default is not False
    if shown:
        text += f" (default: {field.default})"
    return text.replace("%", "%%")


def _checked(annotation: Any, bounds: list[Any]) -> Callable[[str], Any]:
    """Return a function from an option's text to its value; argparse shows what it raises."""
    kind: Any = Annotated[(annotation, *bounds)] if bounds else annotation
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(text: str) -> Any:
        try:
            return Path(text) if annotation is Path else adapter.validate_strings(text)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise argparse.ArgumentTypeError(f"{said}, got {text!r}") from None

    return read


def _item(field: FieldInfo) -> Any:
    return get_args(field.annotation)[0]
