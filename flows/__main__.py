"""Drive the chain from the command line: ``python -m flows COMMAND``.

Commands: ``plan`` and ``run`` with a TOML file, ``resume`` with a run directory, ``ui``, ``up`` and
``down``. Exit codes: 0 ok, 1 failed, 2 usage or config, 3 gate not passed, 4 missing prerequisite,
130 interrupted. Results go to stdout, everything else to stderr.
"""

import argparse
import shlex
import sys
from pathlib import Path

from vf_pipeline.cli.main import INTERRUPTED, run_cli


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(arguments)
    code = run_cli(lambda: _dispatch(args), arguments)
    if args.command == "run" and code in (1, INTERRUPTED):
        settings = [part for value in args.set for part in ("--set", value)]
        again = shlex.join(["python", "-m", "flows", "run", *args.config, *settings])
        sys.stderr.write(f"resume: {again}\n")
    return code


def _dispatch(args: argparse.Namespace) -> int:
    from flows.preflight import check_extras

    check_extras("pipeline")
    if args.command == "ui":
        from flows.ui import serve_uis

        return serve_uis()
    if args.command in ("up", "down"):
        from flows import local

        return local.up() if args.command == "up" else local.down()
    check_extras("train")
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


if __name__ == "__main__":
    sys.exit(main())
