"""Environments by id: what is installed, and how one is loaded.

An environment project registers ``load_environment`` in the entry point group
``vf_pipeline.environments``; without that, the module of the same name is imported.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from importlib import metadata
from typing import Any

from vf_pipeline.environments import Environment
from vf_pipeline.errors import (
    ConfigError,
    EnvironmentFault,
    PrerequisiteError,
    UnknownNameError,
    VfError,
)

GROUP = "vf_pipeline.environments"


def installed_environments() -> dict[str, str]:
    """Return the ids of the installed environments and the versions of their projects."""
    return {entry.name: _entry_version(entry) for entry in _entries()}


def require_environment(env_id: str) -> None:
    """Make sure that an environment of this id can be found, without loading it.

    Raises:
        UnknownNameError: nothing of that id is installed; says what is, and how to install one.
    """
    known = installed_environments()
    name = env_id.replace("-", "_")
    if env_id not in known and not (name.isidentifier() and _importable(name)):
        hint = f"to install one: pip install -e envs/{name or '<id>'}"
        raise UnknownNameError("environment", env_id, known, hint)


def load_environment(env_id: str, **args: Any) -> Environment:
    """Return an environment, made by its project's ``load_environment(**args)``.

    Args:
        env_id: id of an installed environment, such as "number-sense".
        **args: arguments of that environment.

    Raises:
        UnknownNameError: nothing of that id is installed, or it takes no such argument.
        PrerequisiteError: it is installed, but a module that it imports is not.
        EnvironmentFault: its code raised; the cause is kept.

    Example:
        >>> import vf_pipeline as vf
        >>> env = vf.load_environment("number-sense", kinds=["next"], num_examples=2)
        >>> len(env.examples("eval")), env.env_args
        (2, {'kinds': ['next'], 'num_examples': 2})
        >>> vf.load_environment("number-sence")
        Traceback (most recent call last):
        vf_pipeline.errors.UnknownNameError: unknown environment 'number-sence' (did you mean...
    """
    load, version = _find(env_id)
    _check_arguments(env_id, load, args)
    try:
        env = load(**args)
    except VfError:
        raise
    except ImportError as error:
        raise _not_importable(env_id, error) from error
    except Exception as error:
        raise _fault(env_id, "load_environment()", error) from error
    if not isinstance(env, Environment):
        kind = type(env).__name__
        raise EnvironmentFault(
            f"load_environment() of {env_id!r} returned a {kind}", "return an Environment"
        )
    env.env_id, env.version, env.env_args = env_id, version, dict(args)
    return env


def _find(env_id: str) -> tuple[Callable[..., Any], str]:
    for entry in _entries():
        if entry.name == env_id:
            return _imported(env_id, entry.load), _entry_version(entry)
    require_environment(env_id)
    name = env_id.replace("-", "_")
    module = _imported(env_id, lambda: importlib.import_module(name))
    load = getattr(module, "load_environment", None)
    if not callable(load):
        raise ConfigError(
            f"module {name!r} is no environment: it has no load_environment()",
            f"installed environments: {', '.join(installed_environments()) or 'none'}",
        )
    return load, str(getattr(module, "__version__", "0"))


def _imported(env_id: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except VfError:
        raise
    except ImportError as error:
        raise _not_importable(env_id, error) from error
    except Exception as error:
        raise _fault(env_id, "the module", error) from error


def _check_arguments(env_id: str, load: Callable[..., Any], args: dict[str, Any]) -> None:
    parameters = inspect.signature(load).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in args:
        if name not in parameters:
            raise UnknownNameError(f"argument of environment {env_id!r}:", name, parameters)


def _not_importable(env_id: str, error: ImportError) -> VfError:
    hint = f"pip install -e envs/{env_id.replace('-', '_')}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        message = f"environment {env_id!r} needs the module {missing!r}, which is not installed"
        return PrerequisiteError(message, f"install it again with its dependencies: {hint}")
    return PrerequisiteError(f"environment {env_id!r} cannot be imported: {error}", hint)


def _fault(env_id: str, where: str, error: Exception) -> EnvironmentFault:
    cause = f"{type(error).__name__}: {error}"
    return EnvironmentFault(f"{where} of environment {env_id!r} raised {cause}")


def _entries() -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)


def _entry_version(entry: metadata.EntryPoint) -> str:
    return entry.dist.version if entry.dist is not None else "0"


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # __main__ and the like have no spec
        return False
