"""The chain killed in each stage and run again: the same examples, each once."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

STAGES = [
    "prepare",
    "evaluate-base",
    "evaluate-prompted",
    "synthesize",
    "sft",
    "evaluate-sft",
    "grpo",
    "evaluate-trained",
]


def start(command: list[str], project: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            command, env=project, stdout=out, stderr=out, start_new_session=True
        )


def wait_for(log: Path, words: str, process: subprocess.Popen[bytes], timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while words not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, f"waited for {words!r}"
        time.sleep(0.05)


def test_killed_in_each_stage_in_turn(
    chain_command: Callable[..., list[str]], project: dict[str, str], tmp_path: Path
) -> None:
    marker = project["VF_RUNS"]
    for stage in STAGES:
        log = tmp_path / f"{stage}.log"
        process = start(chain_command(), project, log)
        wait_for(log, f"{stage}: started", process)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        time.sleep(1.0)
        assert leftovers(marker) == []
    done = subprocess.run(
        chain_command(), env=project, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    assert "prepare: reused" in done.stderr
    folder = next(Path(marker).iterdir())
    wanted = None
    for which in ("base", "sft", "trained"):
        lines = (folder / f"evaluate-{which}" / "rollouts.jsonl").read_text().splitlines()[1:]
        keys = [line.split(" ", 2)[1] for line in lines if '"kind":"rollout"' in line]
        assert len(keys) == len(set(keys)) == 60
        wanted = wanted or set(keys)
        assert set(keys) == wanted


def test_ctrl_c_saves_and_leaves_nothing_running(
    chain_command: Callable[..., list[str]], project: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start(chain_command(), project, log)
    wait_for(log, "GRPO: 1/6", process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=90) == 130, log.read_text()
    said = log.read_text()
    assert "interrupted" in said
    assert re.search(r"^resume: \S*python\S* -m flows run ", said, re.MULTILINE)
    assert "Traceback" not in said
    assert leftovers(project["VF_RUNS"]) == []


def leftovers(marker: str) -> list[str]:
    """Return the commands of living processes that were started for these runs."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.environ().get("VF_RUNS") == marker
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
