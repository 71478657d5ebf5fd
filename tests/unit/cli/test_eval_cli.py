"""``vf-eval``: what it prints, where it writes, and its exit codes."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import vf_pipeline.testing
from vf_pipeline.cli.eval import main
from vf_pipeline.inference.client import Client
from vf_pipeline.testing import FakeClient

MODULE = """
from vf_pipeline.testing import EchoEnvironment

def load_environment(size=6, **kwargs):
    return EchoEnvironment(num_examples=size, **kwargs)
"""


@pytest.fixture(autouse=True)
def echo_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An importable environment module "cli_echo", and an empty current folder."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "cli_echo.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.delitem(sys.modules, "cli_echo", raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    sys.modules.pop("cli_echo", None)
    signal.signal(signal.SIGTERM, before)


def test_fake_model_prints_the_result(capsys, tmp_path: Path) -> None:
    assert main(["cli-echo", "-m", "fake", "-n", "4", "-r", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("reward 1.000 (95 % CI ")
    assert "4 examples, 8 rollouts, 0 failed" in out
    assert "evaluate fake: 8/8" in err
    [journal] = tmp_path.glob("outputs/evals/cli-echo--fake/*/rollouts.jsonl")
    assert str(journal.parent.relative_to(tmp_path)) in out


def test_json_is_all_that_stdout_holds(capsys) -> None:
    assert main(["cli-echo", "-m", "fake", "-n", "-1", "-r", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["reward"]["mean"], result["counts"]["examples"]) == (1.0, 6)


def test_environment_and_sampling_arguments_arrive(capsys, monkeypatch) -> None:
    clients = []

    def fake(replies: Any) -> FakeClient:
        clients.append(FakeClient(replies))
        return clients[-1]

    monkeypatch.setattr(vf_pipeline.testing, "FakeClient", fake)
    arguments = ["cli-echo", "-m", "fake", "-r", "1", "-n", "-1", "-a", '{"size": 2}']
    arguments += ["-t", "9", "-T", "0.5", "-S", '{"temperature": 0.25, "top_p": 0.9}']
    assert main(arguments) == 0
    requests = clients[0].requests
    assert len(requests) == 2
    request = requests[0]
    assert (request["temperature"], request["top_p"]) == (0.25, 0.9)
    assert request["max_completion_tokens"] == 9


def test_the_same_command_plays_nothing_twice(capsys, tmp_path: Path) -> None:
    for more in ([], [], ["--fresh"], ["-T", "0.5"]):
        assert main(["cli-echo", "-m", "fake", "-n", "2", "-r", "1", *more]) == 0
    assert len(list(tmp_path.glob("outputs/evals/cli-echo--fake/*"))) == 2
    assert capsys.readouterr().err.count("2/2") == 3


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["no-such-env", "-m", "fake"], 2, "no-such-env"),
        (["cli-echo", "-m", "fake", "-S", "{oops"], 2, "-S/--sampling-args is not valid JSON"),
        (["cli-echo", "-m", "fake", "-a", "[1]"], 2, "-a/--env-args must be a JSON object"),
        (["cli-echo", "-m", "fake", "-n", "0"], 2, "-n 0"),
        (["cli-echo", "-m", "x", "-b", "ftp://x"], 2, "ftp://x"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments: list[str], code: int, text: str) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


def test_a_server_that_is_not_there_fails_at_once(capsys, monkeypatch) -> None:
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "max_retries", 0)
    arguments = ["cli-echo", "-m", "x", "-b", "http://127.0.0.1:9/v1", "-n", "1", "-r", "1"]
    assert main(arguments) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("-r 0", "argument -r/--rollouts-per-example: Input should be greater than or equal to 1"),
        ("-T -1", "argument -T/--temperature: Input should be greater than or equal to 0"),
        ("-n many", "argument -n/--num-examples: Input should be a valid integer"),
        ("-t 0", "argument -t/--max-tokens: Input should be greater than or equal to 1, got '0'"),
    ],
)
def test_a_value_out_of_its_bounds_is_a_usage_error(capsys, option: str, words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cli-echo", "-m", "fake", *option.split()])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_usage_errors_exit_with_2(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "-r R, --rollouts-per-example R" in capsys.readouterr().out
