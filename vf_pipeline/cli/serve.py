"""``vf-serve``: the built-in engine behind an OpenAI-compatible API."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from vf_pipeline.errors import VfError


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model until SIGTERM or Ctrl-C; return the exit code."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        _serve(options)
    except VfError as error:
        sys.stderr.write(f"vf-serve: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(options: argparse.Namespace) -> None:
    # Imported late: torch takes a second, and --help needs none of it.
    from transformers.utils import logging as transformers_logging

    from vf_pipeline.serving.engine.requests import EngineLimits
    from vf_pipeline.serving.http.routes import ServerSettings
    from vf_pipeline.serving.server import serve

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    limits = EngineLimits(
        max_batch=options.max_batch,
        max_context=options.max_context,
        kv_budget_mb=options.kv_budget_mb,
        threads=options.threads,
        deterministic=options.deterministic,
    )
    settings = ServerSettings(
        model_dir=options.model,
        served_name=options.served_model_name or Path(options.model).name,
        host=options.host,
        port=options.port,
        limits=limits,
        weights_roots=tuple(options.weights_root),
        weight_version=options.weight_version,
        seed=options.seed,
    )
    serve(settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vf-serve",
        description="Serve a model with the built-in engine, at an OpenAI-compatible URL. "
        "Loopback only, unless VF_SERVE_API_KEY holds a key that clients must send.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="folder with config, tokenizer, safetensors")
    add("--served-model-name", default="", metavar="NAME", help="model name in requests")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    add("--max-batch", type=_positive, default=64, help="most sequences decoded at once")
    add("--max-context", type=_positive, default=512, help="most tokens of prompt and completion")
    add("--kv-budget-mb", type=_positive, default=1024, help="most memory for keys and values")
    add("--threads", type=_positive, default=1, help="threads of the engine")
    add(
        "--weights-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder below which /update_weights may read; may be given more than once",
    )
    add("--weight-version", default="", metavar="V", help="name of the weights that are loaded")
    add("--deterministic", action="store_true", help="same bits each time; slow")
    add("--seed", type=int, default=0, help="seed of requests that bring none")
    add("--verbose", action="store_true", help="log more")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
