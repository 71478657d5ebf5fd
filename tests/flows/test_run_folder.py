"""A run directory belongs to its settings and to one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.command import main
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import StorageError
from vf_pipeline.runs import open_run, run_dir_of


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VF_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VF_STATE", str(tmp_path / "state"))


def test_the_same_settings_find_the_same_folder() -> None:
    config = PipelineConfig()
    other = config.model_copy(update={"seed": 1})
    pooled = config.model_copy(update={"execution": "deployments"})
    assert run_dir_of(config) == run_dir_of(pooled) != run_dir_of(other)


def test_a_run_has_one_owner() -> None:
    with (
        open_run(PipelineConfig()) as run,
        pytest.raises(StorageError, match="another process works on"),
        open_run(run.config),
    ):
        pass


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["run", "no-such.toml"], 2, "no config file 'no-such.toml'"),
        (["run", "configs/quickstart.toml", "--set", "grpo.stepz=1"], 2, "'grpo.steps'"),
        (["run", "configs/quickstart.toml", "--set", "grpo.steps=0"], 2, "grpo.steps"),
        (["run", "configs/quickstart.toml", "--set", 'environment.id="nope"'], 2, "'nope'"),
        (["plan", "configs/quickstart.toml", "--set", 'inference.engine="endpoint"'], 2, "vf-eval"),
        (["resume", "runs/nowhere"], 2, "runs/nowhere"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert "Traceback" not in err


def test_plan_says_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "configs/quickstart.toml"]) == 0
    out = capsys.readouterr().out
    assert out.count("will run") == 9


def test_a_plan_needs_no_prefect() -> None:
    code = "import sys, flows.command; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
