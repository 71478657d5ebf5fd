"""Every option of a command is a setting: its default, its bounds and its help are the setting's.

The bounds are tried: for each that a setting has, the value just outside it is refused.
"""

import argparse
from typing import Any

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from vf_pipeline.cli import eval as eval_command
from vf_pipeline.cli import serve as serve_command
from vf_pipeline.configs import (
    EvalCommandSettings,
    EvalSettings,
    InferenceSettings,
    ModelSettings,
    ServeCommandSettings,
    Settings,
)

COMMANDS = [(eval_command, EvalCommandSettings), (serve_command, ServeCommandSettings)]
CASES = [
    pytest.param(settings, action, id=f"{settings.__name__}-{action.dest}")
    for command, settings in COMMANDS
    for action in command._parser()._actions
    if action.dest != "help"
]


def outside(field: FieldInfo) -> list[Any]:
    """Return one value beyond each bound of a setting."""
    values: list[Any] = []
    for bound in field.metadata:
        if isinstance(bound, annotated_types.Ge):
            values.append(bound.ge - 1)
        if isinstance(bound, annotated_types.Gt):
            values.append(bound.gt)
        if isinstance(bound, annotated_types.Le):
            values.append(bound.le + 1)
        if isinstance(bound, annotated_types.Lt):
            values.append(bound.lt)
    return values


@pytest.mark.parametrize(("settings", "action"), CASES)
def test_an_option_says_what_its_setting_says(
    settings: type[Settings], action: argparse.Action
) -> None:
    field = settings.model_fields[action.dest.removesuffix("_option")]
    assert action.help is not None
    assert field.description is not None
    assert action.help.startswith(field.description.rstrip("."))
    if field.is_required():
        assert action.required
        return
    if action.dest in ("model", "model_option") and settings is ServeCommandSettings:
        assert action.default is None  # two spellings of one setting: neither hides the other
    elif isinstance(field.default, tuple):
        assert tuple(action.default) == field.default
    else:
        assert action.default == field.default
    if field.default not in ("", None, ()) and field.default is not False:
        assert f"(default: {field.default})" in action.help
    for value in outside(field):
        assert callable(action.type)
        with pytest.raises(argparse.ArgumentTypeError, match="Input should be"):
            action.type(str(value))


def test_every_setting_of_a_command_has_its_option() -> None:
    for command, settings in COMMANDS:
        options = {action.dest for action in command._parser()._actions}
        assert settings.model_fields.keys() <= options


@pytest.mark.parametrize(
    ("ours", "name", "theirs", "named"),
    [
        (EvalCommandSettings, "max_concurrent", EvalSettings, "max_concurrent"),
        (EvalCommandSettings, "model", ModelSettings, "name"),
        (EvalCommandSettings, "api_key_var", InferenceSettings, "api_key_var"),
        (ServeCommandSettings, "model", ModelSettings, "name"),
        (ServeCommandSettings, "max_batch", InferenceSettings, "max_batch"),
        (ServeCommandSettings, "max_context", InferenceSettings, "max_context"),
        (ServeCommandSettings, "kv_budget_mb", InferenceSettings, "kv_budget_mb"),
        (ServeCommandSettings, "threads", InferenceSettings, "threads"),
    ],
)
def test_a_command_has_the_chains_own_default(
    ours: type[Settings], name: str, theirs: type[Settings], named: str
) -> None:
    assert ours.model_fields[name].default == theirs.model_fields[named].default
    assert ours.model_fields[name].metadata == theirs.model_fields[named].metadata


def test_sizes_of_an_evaluation_are_those_of_upstream() -> None:
    options = eval_command._parsed(["some-env"])
    assert (options.num_examples, options.rollouts_per_example) == (5, 3)
    assert (options.max_tokens, options.temperature) == (None, None)
