"""The command line of the chain: ``python -m flows COMMAND``.

Commands: ``plan`` and ``run`` with a TOML file, ``resume`` with a run directory, ``ui``, ``up`` and
``down``. Exit codes: 0 ok, 1 failed, 2 usage or config, 3 gate not passed, 4 missing prerequisite,
130 interrupted. Results go to stdout, everything else to stderr.
"""

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.prefect_server import check_server, prefect_server
from infra.local.reconcile import reconcile
from vf_pipeline import storage
from vf_pipeline.cli.main import INTERRUPTED, run_cli
from vf_pipeline.configs import PipelineConfig, load_config
from vf_pipeline.processes.memory import PeakMemory
from vf_pipeline.registry import require_environment
from vf_pipeline.runs import Manifest, read_run_config, run_dir_of
from vf_pipeline.runs.outputs import Promoted
from vf_pipeline.runs.preflight import check_extras, check_run
from vf_pipeline.runs.stages import STAGES, reusable

log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(arguments)
    code = run_cli(lambda: _dispatch(args), arguments)
    if args.command == "run" and code in (1, INTERRUPTED):
        # Without --fresh: to go on is the point.
        settings = [part for value in args.set for part in ("--set", value)]
        again = shlex.join([_python(), "-m", "flows", "run", *args.config, *settings])
        sys.stderr.write(f"resume: {again}\n")
    return code


def _python() -> str:
    """Return how this very Python is called from here."""
    here = os.path.relpath(sys.executable)
    return sys.executable if here.startswith("..") else here


def _dispatch(args: argparse.Namespace) -> int:
    check_extras("pipeline")
    if args.command == "ui":
        from infra.local.ui import serve_uis

        return serve_uis()
    if args.command in ("up", "down"):
        from infra.local import stack

        return stack.up() if args.command == "up" else stack.down()
    # Not before ui, up and down, which need no torch.
    check_extras("train")
    if args.command == "resume":
        config = read_run_config(Path(args.run))
    else:
        config = load_config(PipelineConfig, args.config, args.set)
    if args.command == "plan":
        return plan(config)
    fresh = args.command == "run" and args.fresh
    return run(config, fresh=fresh, debug=args.debug)


def run(config: PipelineConfig, *, fresh: bool = False, debug: bool = False) -> int:
    """Run or resume the chain under Prefect, print its verdict, and return the exit code.

    Raises:
        VfError: something is missing, or a stage failed.
    """
    folder = run_dir_of(config)
    done = None if fresh else _finished(config)
    if done is None:
        _check(config, folder)
        with _logs_on_stderr(debug):
            log.info("run directory: %s", folder)
            done = _run(config, folder, fresh=fresh, quiet=not debug)
    _show(folder, done)
    return 0 if done.passed else 3


def plan(config: PipelineConfig) -> int:
    """Print which stages would run and which would be reused; return 0."""
    folder = run_dir_of(config)
    _check(config, folder)
    lines = [f"run directory: {folder}"]
    manifest = Manifest.open(folder)
    for name, stage in STAGES.items():
        state = "reused" if reusable(config, manifest, name) is not None else "will run"
        lines.append(f"  {name:17} {state:9} pool vf-{stage.pool}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _check(config: PipelineConfig, folder: Path) -> None:
    require_environment(config.environment.id)
    check_run(config, folder)
    if config.execution == "deployments":
        check_server()


def _run(config: PipelineConfig, folder: Path, *, fresh: bool, quiet: bool) -> Promoted:
    """Return the outcome of the flow, and keep beside it what it took."""
    started_at = time.monotonic()
    with PeakMemory() as memory, prefect_server(folder / "logs", quiet=quiet) as api:
        log.info("Prefect, while this runs: %s", api.removesuffix("/api"))
        reconcile()
        # Prefect reads its settings when it is imported, so the flow comes after the server.
        from flows.pipeline import chain_flow

        outcome = chain_flow(config, fresh)
    took = {
        "peak_gb": round(memory.peak_gb, 2),
        "wall_s": round(time.monotonic() - started_at, 1),
    }
    storage.write_json(folder / "took.json", took)
    return outcome


def _finished(config: PipelineConfig) -> Promoted | None:
    """Return the outcome of a run whose last stage is done, for these very settings."""
    folder = run_dir_of(config)
    manifest = Manifest.open(folder)
    # The records in Prefect and MLflow are closed after the last stage, and noted then.
    if not manifest.facts.get("published"):
        return None
    done = reusable(config, manifest, "promote")
    return done if isinstance(done, Promoted) else None


def _show(folder: Path, outcome: Promoted) -> None:
    stages = Manifest.open(folder).stages.values()
    time_taken = f"stages took {sum(record.duration_s for record in stages):.0f} s in all"
    if storage.exists(folder / "took.json"):
        took = storage.read_json(folder / "took.json")
        time_taken += (
            f", the command that finished {took['wall_s']:.0f} s and {took['peak_gb']:.1f} GB "
            "at its peak"
        )
    lines = [
        "",
        *outcome.verdict,
        "",
        time_taken,
        f"report: {outcome.report}",
        "look around: make ui",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


@contextmanager
def _logs_on_stderr(debug: bool) -> Iterator[None]:
    """Show what the flows and the library log, each line with its time, while the block runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    loggers = [logging.getLogger(name) for name in ("flows", "infra", "vf_pipeline")]
    for logger in loggers:
        logger.setLevel(logging.DEBUG if debug else logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows", description="Run the chain: evaluate, synthesize, train, promote."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "run the chain of a config, or resume it where it stopped"),
        ("plan", "say what would run and what would be reused"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", nargs="+", help="TOML files, read left to right")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting"
        )
        if name == "run":
            command.add_argument("--fresh", action="store_true", help="throw the old run away")
    resume = commands.add_parser("resume", help="go on with a run directory")
    resume.add_argument("run", help="such as runs/quickstart-0123456789")
    commands.add_parser("ui", help="show the Prefect and MLflow UIs until Ctrl-C")
    commands.add_parser("up", help="start server, pools, workers and MLflow, to stay")
    commands.add_parser("down", help="end what `up` started")
    # Without SUPPRESS, a command's default would overwrite a --debug that stands before it.
    for command in commands.choices.values():
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
    return parser
