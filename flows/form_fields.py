"""From the settings to the fields and sections of a form.

What is chosen here is which settings a form shows and in which order; a field's default, bounds and
words are those of the setting.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from vf_pipeline.configs import PipelineConfig, Settings, same_field

FIRST_SECTION = 10


def shown(settings: type[Settings], name: str, position: int, **changes: Any) -> Any:
    """Return a form's field for one setting.

    Args:
        settings: the model that has the setting.
        name: its name there.
        position: place among the form's fields; the UI sorts by it.
        **changes: what the form says otherwise, as arguments of pydantic's ``Field``.
    """
    title = settings.model_fields[name].title or name.replace("_", " ").capitalize()
    return same_field(
        settings, name, **{"title": title, "json_schema_extra": {"position": position}} | changes
    )


def asked(settings: type[Settings], name: str, position: int, **changes: Any) -> Any:
    """Return a field that must be given; the UI fills the setting's default in, if it has one.

    A default would make it "(Optional)" in the UI, and emptying it would silently bring it back.
    """
    default = settings.model_fields[name].get_default()
    extra = {"position": position, "default": default}
    known = changes.pop("known", None)
    changes["json_schema_extra"] = _choice(extra, known) if known else extra
    return shown(settings, name, position, default=..., **changes)


def form_of(
    base: type[BaseModel], name: str, config: type[PipelineConfig], **sections: tuple[str, ...]
) -> Any:
    """Return a form with a section for each part of the settings that is named.

    Args:
        base: the form that it extends.
        name: name of the class, which the UI shows in its schema.
        config: the settings that it starts from.
        **sections: parts of ``config``, each with the settings in it that the form shows.
    """
    fields: dict[str, Any] = {}
    for position, (part, names) in enumerate(sections.items(), start=FIRST_SECTION):
        setting = config.model_fields[part]
        section = _section(
            f"{name}{part.capitalize()}", cast(type[Settings], setting.annotation), names
        )
        given = any(field.is_required() for field in section.model_fields.values())
        # The UI writes "(Optional)" behind a section with defaults: it is the settings that are.
        title = setting.title if given else f"{setting.title} settings"
        default = ... if given else section()
        extra = {"position": position}
        fields[part] = (section, Field(default, title=title, json_schema_extra=extra))
    doc = base.__doc__
    return create_model(name, __base__=base, __doc__=doc, __module__=base.__module__, **fields)


def _section(name: str, settings: type[Settings], names: tuple[str, ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (settings.model_fields[key].annotation, shown(settings, key, position))
        for position, key in enumerate(names)
    }
    config = ConfigDict(extra="forbid", frozen=True)
    return create_model(name, __config__=config, __doc__=settings.__doc__, **fields)


def _choice(
    extra: dict[str, Any], known: Callable[[], Iterable[str]]
) -> Callable[[dict[str, Any]], None]:
    """Return what makes a text field a list to choose from, with any other text still possible.

    The UI shows the branches of ``anyOf`` as tabs, and one with ``enum`` as a list to search in.
    The names are looked up when the schema is made, which is when the flow is deployed.
    """

    def extend(schema: dict[str, Any]) -> None:
        schema.update(extra)
        names = sorted(known())
        if names:
            del schema["type"]
            schema["anyOf"] = [
                {"title": "Choose", "type": "string", "enum": names},
                {"title": "Type another", "type": "string"},
            ]

    return extend
