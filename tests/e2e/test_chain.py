"""The whole chain on a tiny model, under Prefect, with a real MLflow store."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vf_pipeline.rollouts.journal import read_journal
from vf_pipeline.types import WeightVersion


def run(
    command: list[str], project: dict[str, str], timeout: float = 400.0
) -> tuple[int, str, str]:
    done = subprocess.run(
        command, env=project, capture_output=True, text=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_chain_ends_with_a_verdict_a_record_and_nothing_left_running(
    chain_command: Callable[..., list[str]], project: dict[str, str]
) -> None:
    code, out, err = run(chain_command(), project)
    assert code in (0, 3), err
    assert ("PASSED" in out) == (code in (0, 3))
    assert "GRPO over SFT" in out
    folder = next(Path(project["VF_RUNS"]).iterdir())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest["stages"]) == [
        "evaluate-base",
        "evaluate-prompted",
        "evaluate-sft",
        "evaluate-trained",
        "grpo",
        "prepare",
        "promote",
        "sft",
        "synthesize",
    ]
    check_rollouts(folder, examples=60)
    check_mlflow(Path(project["VF_STATE"]) / "mlflow.db", manifest)
    check_prefect(Path(project["VF_STATE"]) / "prefect" / "prefect.db", manifest)
    check_baselines(folder, manifest, out)
    check_training_journal(folder)
    report = (folder / "report.html").read_text()
    assert out.splitlines()[1][:20] in report.replace("&amp;", "&") or "points" in report

    code, again, err = run(chain_command(), project)
    assert code in (0, 3)
    assert again.splitlines()[1] == out.splitlines()[1], "a finished run prints its verdict"


def check_rollouts(folder: Path, examples: int) -> None:
    seen = []
    prompted = [f"prompted/{name}" for name in ("zero-shot-8-tokens", "1-shot-4-tokens")]
    for which in ("base", *prompted, "sft", "trained"):
        lines = (folder / f"evaluate-{which}" / "rollouts.jsonl").read_text().splitlines()[1:]
        keys = [line.split(" ", 2)[1] for line in lines if '"kind":"rollout"' in line]
        assert len(keys) == len(set(keys)) == examples
        seen.append(set(keys))
    assert all(keys == seen[0] for keys in seen), (
        "before and after are measured on the same examples"
    )


def check_training_journal(folder: Path) -> None:
    """The worker's plays are in a journal like any other, each with the weights that sampled it."""
    played = read_journal(folder / "grpo" / "rollouts.jsonl")
    assert len(played) >= 6 * 4 * 4, "steps × groups × group size, refills not counted"
    weights = [WeightVersion.parse(turn.weights) for p in played for turn in p.rollout.turns]
    assert {version.step for version in weights} == set(range(6))
    first = {version.digest for version in weights if version.step == 0}
    later = {version.digest for version in weights if version.step}
    assert len(first | later) <= 2, "the warm start's digest, then the training's"


def check_baselines(folder: Path, manifest: dict, out: str) -> None:
    outputs = manifest["stages"]["evaluate-prompted"]["outputs"]
    assert outputs["left_out"] == []
    labels = ["zero-shot, 8 tokens", "1-shot, 4 tokens"]
    assert [made["label"] for made in outputs["baselines"]] == labels
    best = manifest["stages"]["promote"]["outputs"]["best_prompted"]
    assert f"over the best prompted base ({best}: " in out.splitlines()[1]
    report = (folder / "report.html").read_text()
    assert "trained − best prompted" in report
    for label in ["zero-shot, 4 tokens", *labels]:
        assert f"base, {label}" in report


def check_mlflow(database: Path, manifest: dict) -> None:
    with sqlite3.connect(database) as db:
        runs = {row[0]: row[1] for row in db.execute("select run_uuid, status from runs")}
        parents = {
            row[0]: row[1]
            for row in db.execute("select run_uuid, value from tags where key='mlflow.parentRunId'")
        }
        version = db.execute("select name, version from model_versions").fetchall()
        rewards = db.execute("select count(*) from metrics where key='reward/mean'").fetchone()[0]
    stages = manifest["facts"]["mlflow_runs"]
    assert set(stages.values()) == set(runs)
    assert set(runs.values()) == {"FINISHED"}
    assert set(parents.values()) == {stages[""]}
    assert len(version) == 1
    assert rewards >= 8


def check_prefect(database: Path, manifest: dict) -> None:
    with sqlite3.connect(database) as db:
        states = db.execute("select name, state_type from flow_run").fetchall()
        keys = {row[0] for row in db.execute("select key from artifact")}
        ids = {row[0] for row in db.execute("select id from flow_run")}
    assert [state for _, state in states] == ["COMPLETED"]
    assert {"verdict-tiny", "stages-tiny", "mlflow-tiny"} <= keys
    assert str(manifest["facts"]["prefect_flow_run"]) in {str(i) for i in ids}


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("grpo.stepz=3", 2, "did you mean 'grpo.steps'"),
        ("grpo.lr=-1", 2, "grpo.lr"),
        ('environment.id="tiny-digit"', 2, "unknown environment"),
        ('model.name="/nowhere/at/all"', 2, "/nowhere/at/all"),
    ],
)
def test_bad_input_is_one_clear_line(
    setting: str,
    code: int,
    words: str,
    chain_command: Callable[..., list[str]],
    project: dict[str, str],
) -> None:
    got, out, err = run(chain_command(setting), project)
    assert got == code, err
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
