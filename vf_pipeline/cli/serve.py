"""``vf-serve``: the built-in engine behind an OpenAI-compatible API.

    vf-serve smollm2-135m
    vf-serve runs/quickstart-0123456789/grpo/model --port 8001

A model is what ``vf-eval -m`` takes: a name known here, a local folder, or a hub id.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vf_pipeline.configs import ServeCommandSettings, add_option, validate
from vf_pipeline.errors import ConfigError, VfError

_OPTIONS = {
    "served_model_name": "NAME",
    "host": "HOST",
    "port": "PORT",
    "max_batch": "N",
    "max_context": "TOKENS",
    "kv_budget_mb": "MB",
    "threads": "N",
    "weights_root": "DIR",
    "weight_version": "V",
    "deterministic": "",
    "seed": "SEED",
    "verbose": "",
}
"""The options with their metavars, besides the model; all else is the setting's own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model until SIGTERM or Ctrl-C; return the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        _serve(_options(arguments))
    except VfError as error:
        sys.stderr.write(f"vf-serve: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _options(arguments: argparse.Namespace) -> ServeCommandSettings:
    values = vars(arguments)
    named = values.pop("model_option")
    given = values.pop("model")
    if named and given and named != given:
        raise ConfigError(f"two models are named: {given} and --model {named}", "name one")
    asked = [model for model in (given, named) if model is not None]
    values |= {"model": asked[0]} if asked else {}
    return validate(ServeCommandSettings, values, where="the command line")


def _serve(options: ServeCommandSettings) -> None:
    # Imported late: torch takes a second, and --help needs none of it.
    from transformers.utils import logging as transformers_logging

    from vf_pipeline.serving.engine.requests import EngineLimits
    from vf_pipeline.serving.http.routes import ServerSettings
    from vf_pipeline.serving.server import serve

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder, version = _weights(options)
    limits = EngineLimits(
        max_batch=options.max_batch,
        max_context=options.max_context,
        kv_budget_mb=options.kv_budget_mb,
        threads=options.threads or _cores(),
        deterministic=options.deterministic,
    )
    settings = ServerSettings(
        model_dir=folder,
        served_name=options.served_model_name or _served_name(options.model),
        host=options.host,
        port=options.port,
        limits=limits,
        weights_roots=options.weights_root,
        weight_version=version,
        seed=options.seed,
    )
    serve(settings)


def _weights(options: ServeCommandSettings) -> tuple[str, str]:
    """Return the folder of the model's weights, and the name of these weights."""
    folder = Path(options.model).expanduser()
    if folder.is_dir() and options.weight_version:
        # Whoever names the weights knows them: reading them all for their digest would be a waste.
        return str(folder), options.weight_version
    from vf_pipeline.models.resolve import resolve_model

    model = resolve_model(options.model)
    return model.uri, options.weight_version or model.digest


def _served_name(model: str) -> str:
    """Return a model's name in requests: as it was given, or the name of its folder."""
    folder = Path(model.removeprefix("file://")).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vf-serve",
        description="Serve a model with the built-in engine, at an OpenAI-compatible URL. "
        "Loopback only, unless VF_SERVE_API_KEY holds a key that clients must send.",
        epilog=__doc__.partition("\n\n")[2] if __doc__ else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Two spellings of one setting: the later default would hide the earlier value, so none has one.
    add_option(parser, ServeCommandSettings, "model", "model", metavar="MODEL", nargs="?")
    add_option(
        parser, ServeCommandSettings, "model", "--model", metavar="MODEL", dest="model_option"
    )
    parser.set_defaults(model=None, model_option=None)
    for name, metavar in _OPTIONS.items():
        more = {"metavar": metavar} if metavar else {}
        add_option(parser, ServeCommandSettings, name, **more)
    return parser


if __name__ == "__main__":
    sys.exit(main())
