"""``vf-eval``: measure a model on an environment.

    vf-eval number-sense -m smollm2-135m -n 50
    vf-eval number-sense -m gpt-4.1-mini -b https://api.openai.com/v1 -k OPENAI_API_KEY
    vf-eval number-sense -m fake --json

Every rollout is written when it is done; the same command goes on where it stopped.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.cli.main import log_to_stderr, run_cli
from vf_pipeline.configs import (
    EvalCommandSettings,
    EvalSettings,
    InferenceSettings,
    add_option,
    validate,
)
from vf_pipeline.errors import ConfigError
from vf_pipeline.types import EvalResult, Interval, Messages

FAKE = "fake"
_OPTIONS = {
    "": {"env": ("", "ENV"), "env_args": ("-a --env-args", "JSON")},
    "model": {
        "model": ("-m --model", "MODEL"),
        "api_base_url": ("-b --api-base-url", "URL"),
        "api_key_var": ("-k --api-key-var", "VAR"),
    },
    "size": {
        "num_examples": ("-n --num-examples", "N"),
        "rollouts_per_example": ("-r --rollouts-per-example", "R"),
        "max_concurrent": ("-c --max-concurrent", "C"),
    },
    "sampling": {
        "max_tokens": ("-t --max-tokens", "MAX"),
        "temperature": ("-T --temperature", "TEMP"),
        "sampling_args": ("-S --sampling-args", "JSON"),
        "seed": ("--seed", "SEED"),
    },
    "output": {
        "output_dir": ("-o --output-dir", "DIR"),
        "fresh": ("--fresh", ""),
        "as_json": ("--json", ""),
        "verbose": ("-v --verbose", ""),
        "debug": ("--debug", ""),
    },
}
"""The options by group: each setting's spellings and metavar; all else is the setting's own."""

_JSON_HINT = """write it like '{"key": 1}'"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, evaluate, and return the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return run_cli(lambda: _run(_parsed(arguments)), arguments)


def _parsed(arguments: Sequence[str]) -> EvalCommandSettings:
    values = vars(_parser().parse_args(arguments))
    return validate(EvalCommandSettings, values, where="the command line")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vf-eval",
        description="Measure a model on an environment.",
        epilog=__doc__.partition("\n\n")[2] if __doc__ else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title) if title else parser
        for name, (flags, metavar) in options.items():
            more = {"metavar": metavar} if metavar else {}
            add_option(group, EvalCommandSettings, name, *flags.split(), **more)
    return parser


@dataclass(frozen=True, slots=True)
class _Source:
    """Where answers come from, and what identifies the model there."""

    endpoint: Any
    client: Any
    identity: str


def _run(args: EvalCommandSettings) -> int:
    from vf_pipeline.evaluation.evaluate import evaluate, json_values
    from vf_pipeline.registry import load_environment
    from vf_pipeline.rollouts.identity import journal_identity

    log_to_stderr(args.verbose)
    settings = _eval_settings(args)
    sampling = _sampling(args)
    env_args = _json_object(args.env_args, "-a/--env-args")
    env = load_environment(args.env, **env_args)
    examples = env.examples("eval", args.num_examples)
    inference = InferenceSettings(
        engine="endpoint" if args.api_base_url else "builtin",
        base_url=args.api_base_url,
        api_key_var=args.api_key_var,
    )
    with ExitStack() as stack:
        source = _open_source(args, inference, stack)
        identity = journal_identity(
            env,
            model=source.identity,
            data=storage.digest_json([example.digest for example in examples]),
            seed=args.seed,
            rollouts_per_example=settings.rollouts_per_example,
            sampling=sampling,
        )
        folder = _folder(args, identity)
        result = evaluate(
            env,
            examples,
            source.endpoint,
            model_name=args.model,
            settings=settings,
            inference=inference,
            seed=args.seed,
            folder=folder,
            journal_settings=identity,
            sampling=sampling,
            client=source.client,
            fresh=args.fresh,
        )
    text = json.dumps(json_values(result), indent=2) if args.as_json else _describe(result, folder)
    print(text)
    return 0


def _open_source(
    args: EvalCommandSettings, inference: InferenceSettings, stack: ExitStack
) -> _Source:
    """Return the fake, the endpoint that -b names, or the built-in engine, which is started."""
    from vf_pipeline.inference.endpoints import Endpoint

    if args.model == FAKE:
        from vf_pipeline.testing import FakeClient

        return _Source(Endpoint("http://127.0.0.1/v1", FAKE), FakeClient(_echo), FAKE)
    if args.api_base_url:
        endpoint = Endpoint(args.api_base_url, args.model, args.api_key_var)
        return _Source(endpoint, None, f"{args.model} at {endpoint.base_url}")
    from vf_pipeline.models.resolve import resolve_model
    from vf_pipeline.serving.session import EngineSession

    model = resolve_model(args.model)
    work = stack.enter_context(tempfile.TemporaryDirectory(prefix="vf-eval-"))
    session = stack.enter_context(EngineSession(inference, Path(work)))
    return _Source(session.endpoint_for(model), None, model.digest)


def _echo(prompt: Messages) -> str:
    """Return the question: what the fake model answers to anything."""
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")


def _eval_settings(args: EvalCommandSettings) -> EvalSettings:
    if args.num_examples == 0:
        raise ConfigError("-n 0 asks for no examples", "-1 asks for all")
    values: dict[str, Any] = {
        "rollouts_per_example": args.rollouts_per_example,
        "max_concurrent": args.max_concurrent,
    }
    values |= {"max_tokens": args.max_tokens} if args.max_tokens is not None else {}
    values |= {"temperature": args.temperature} if args.temperature is not None else {}
    return validate(EvalSettings, values, where="the command line")


def _sampling(args: EvalCommandSettings) -> dict[str, Any]:
    """Return the sampling arguments that were given: the server's own defaults fill the rest."""
    given = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    given = {name: value for name, value in given.items() if value is not None}
    given |= _json_object(args.sampling_args, "-S/--sampling-args")
    if not isinstance(given.get("seed"), int | None):
        raise ConfigError(
            f"-S/--sampling-args: seed must be a whole number, got {given['seed']!r}", _JSON_HINT
        )
    return given


def _json_object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is not valid JSON: {error}", _JSON_HINT) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}", _JSON_HINT)
    return value


def _folder(args: EvalCommandSettings, identity: dict[str, Any]) -> Path:
    """Return the folder of these very settings, so that the same command finds it again."""
    model = "".join(c if c.isalnum() or c in "-_." else "-" for c in args.model.strip("/"))
    name = f"{args.env}--{model}"
    return Path(args.output_dir) / name / storage.digest_json(identity)[:10]


def _describe(result: EvalResult, folder: Path) -> str:
    counts = result.counts
    lines = [
        f"reward {_estimate(result.reward)}",
        f"{result.env}, {result.model}: {counts['examples']} examples, {counts['rollouts']} "
        f"rollouts, {counts['errors']} failed, {counts['unscored']} unscored, "
        f"{counts['truncated']} cut by the token limit, {result.duration_s:.1f} s",
    ]
    if len(result.per_task) > 1:
        lines += [f"  task {name}: {_estimate(row)}" for name, row in result.per_task.items()]
    lines += [f"  {name}: {value:.3f}" for name, value in sorted(result.metrics.items())]
    return "\n".join([*lines, f"results: {folder}"])


def _estimate(row: Interval) -> str:
    if row.n == 0:
        return "unknown: nothing was scored"
    if row.low != row.low:
        return f"{row.mean:.3f} (one example, no interval)"
    examples = "1 example" if row.n == 1 else f"{row.n} examples"
    return f"{row.mean:.3f} (95 % CI {row.low:.3f} … {row.high:.3f}, {examples})"


if __name__ == "__main__":
    sys.exit(main())
