"""The chain killed in each stage and run again: the same examples, each once."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

STAGES = [
    "prepare",
    "evaluate-base",
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
        keys = [
            line.split(" ", 2)[1]
            for line in lines
            if json.loads(line.split(" ", 2)[2])["type"] == "rollout"
        ]
        assert len(keys) == len(set(keys)) == 60
        wanted = wanted or set(keys)
        assert set(keys) == wanted


def leftovers(marker: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if marker in command and "pytest" not in command:
            found.append(command)
    return found
