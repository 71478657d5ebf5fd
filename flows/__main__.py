"""Drive the chain from the command line.

    python -m flows plan configs/quickstart.toml
    python -m flows run configs/quickstart.toml --set grpo.lr=1e-6
    python -m flows resume runs/quickstart-0123456789
    python -m flows ui
python -m flows up
python -m flows down

Exit codes: 0 ok, 1 failed, 2 usage or config, 3 gate not passed, 4 missing prerequisite, 130
interrupted. Results go to stdout, everything else to stderr.
"""

import argparse
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from vf_pipeline.errors import VfError


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _dispatch(args)
    except VfError as error:
        _complain(args, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain(args, "interrupted; what is done is saved")
        return 130
    except Exception as error:
        _complain(args, f"{type(error).__name__}: {error} (--debug shows where)")
        if args.debug:
            traceback.print_exc()
        return 1


def _dispatch(args: argparse.Namespace) -> int:
    from flows.preflight import check_extras

    check_extras()
    if args.command == "ui":
        from flows.ui import serve_uis

        return serve_uis()
    if args.command in ("up", "down"):
        from flows import local

        return local.up() if args.command == "up" else local.down()
    from flows import chain
    from tasks.run import config_from, read_run_config

    if args.command == "resume":
        config = read_run_config(Path(args.run))
    else:
        config = config_from(args.config, args.set)
    if args.command == "plan":
        return chain.plan(config)
    fresh = args.command == "run" and args.fresh
    return chain.run(config, fresh=fresh, debug=args.debug)


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
    for command in commands.choices.values():
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
    return parser


def _complain(args: argparse.Namespace, message: str) -> None:
    sys.stderr.write(f"error: {message}\n")
    if args.command == "run":
        settings = [part for value in args.set for part in ("--set", value)]
        again = " ".join(["python -m flows run", *args.config, *settings])
        sys.stderr.write(f"resume: {again}\n")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
