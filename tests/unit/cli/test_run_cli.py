"""Errors of commands: one line and an exit code."""

import logging
import os
import signal
import subprocess
import sys

import pytest

from vf_pipeline.cli.main import log_to_stderr, run_cli
from vf_pipeline.errors import ConfigError, GateError, PrerequisiteError, VfError


@pytest.fixture(autouse=True)
def restore_sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def raiser(error: BaseException):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VfError("lost", "look there"), 1),
        (ConfigError("wrong"), 2),
        (GateError("worse"), 3),
        (PrerequisiteError("missing"), 4),
        (KeyboardInterrupt(), 130),
        (KeyError("x"), 1),
    ],
)
def test_errors_are_one_line_and_a_code(error, code: int, capsys) -> None:
    assert run_cli(raiser(error), []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_hint_and_debug(capsys, monkeypatch) -> None:
    monkeypatch.delenv("VF_DEBUG", raising=False)
    run_cli(raiser(VfError("lost", "look there")), [])
    assert capsys.readouterr().err == "error: lost (look there)\n"
    run_cli(raiser(ValueError("two\nlines")), [])
    assert capsys.readouterr().err == "error: ValueError: two lines (--debug shows where)\n"
    run_cli(raiser(ValueError("x")), ["--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_success_and_sigterm(capsys) -> None:
    assert run_cli(lambda: None, []) == 0
    assert run_cli(lambda: 3, []) == 3
    assert run_cli(lambda: os.kill(os.getpid(), signal.SIGTERM), []) == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys; from vf_pipeline.cli.main import run_cli\n"
        "sys.exit(run_cli(lambda: print('x' * 1000000), []))"
    )
    pipe = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.read(1)
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    pipe.stderr.close()
    assert pipe.wait(30) == 1


@pytest.mark.parametrize(("verbose", "lines"), [(False, 2), (True, 61)])
def test_floods_of_warnings_are_held_back(capsys, monkeypatch, verbose: bool, lines: int) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr(verbose)
    logger = logging.getLogger("vf_pipeline.some")
    for attempt in range(60):
        logger.warning("no answer, retry %d", attempt)
    logger.warning("something else")
    err = capsys.readouterr().err.splitlines()
    assert len(err) == lines
    assert err[0] == "WARNING vf_pipeline.some: no answer, retry 0"
