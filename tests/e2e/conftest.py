"""A tiny model that answers with a random digit, and a project folder of its own for each test."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMALL = [
    'name="tiny"',
    'environment.id="tiny-digits"',
    "inference.max_context=256",
    "inference.max_batch=32",
    "data.eval_examples=60",
    "data.synth_examples=60",
    "data.train_examples=120",
    "eval.max_tokens=4",
    "eval.temperature=1.0",
    "eval.baselines=[{max_tokens = 8}, {shots = 1}]",
    "synth.max_tokens=4",
    "synth.min_rows=8",
    "synth.rollouts_per_example=2",
    "sft.lr=2e-3",
    "grpo.max_tokens=4",
    "grpo.steps=6",
    "grpo.groups=4",
    "grpo.group_size=4",
    "grpo.lr=1e-3",
    "grpo.save_steps=2",
]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tiny weights that answer any prompt with one digit, each as likely."""
    folder = tmp_path_factory.mktemp("tiny-model")
    script = ROOT / "tests" / "e2e" / "make_digit_model.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=300, cwd=ROOT)
    return folder


@pytest.fixture
def small() -> list[str]:
    """Return the settings of the tiny chain."""
    return SMALL


@pytest.fixture
def project(tmp_path: Path, project_in: Callable[[Path], dict[str, str]]) -> dict[str, str]:
    """Return the environment variables of a project whose state and runs are this test's own."""
    return project_in(tmp_path)


@pytest.fixture(scope="session")
def project_in() -> Callable[[Path], dict[str, str]]:
    """Return a function that gives the environment variables of a project in a folder."""
    return lambda folder: {
        **os.environ,
        "VF_STATE": str(folder / "state"),
        "VF_RUNS": str(folder / "runs"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "e2e" / "environments")]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture
def chain_command(tiny_model: Path) -> Callable[..., list[str]]:
    """Return a function that makes the command of the tiny chain."""

    def command(*more: str) -> list[str]:
        settings = [*SMALL, f'model.name="{tiny_model}"', *more]
        sets = [part for setting in settings for part in ("--set", setting)]
        config = str(ROOT / "tests" / "e2e" / "tiny.toml")
        return [sys.executable, "-m", "flows", "run", config, *sets]

    return command
