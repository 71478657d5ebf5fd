"""Pools, workers and deployments on loopback: triggered through the API, found in the record."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def services(project: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start server, pools, workers and MLflow on free ports; end them, and see that they ended."""
    env = project | {
        "VF_PREFECT_PORT": str(free_port()),
        "VF_MLFLOW_PORT": str(free_port()),
    }
    env.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "flows"]
    try:
        up = subprocess.run(
            [*command, "up"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=400
        )
        assert up.returncode == 0, up.stderr
        again = subprocess.run(
            [*command, "up"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200
        )
        assert again.returncode == 0, f"a second `up` changes nothing: {again.stderr}"
        yield env
    finally:
        records = Path(env["VF_STATE"]) / "services.json"
        pids = [r["pid"] for r in json.loads(records.read_text())] if records.exists() else []
        subprocess.run([*command, "down"], cwd=ROOT, env=env, capture_output=True, timeout=120)
        assert [pid for pid in pids if lives(pid)] == []


def lives(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def call(env: dict[str, str], path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{env['VF_PREFECT_PORT']}/api{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def trigger(env: dict[str, str], deployment: str, form: dict[str, Any], timeout: float) -> Any:
    """Start a deployment as the UI does, and return its flow run when it has ended."""
    found = call(env, f"/deployments/name/{deployment}")
    made = call(env, f"/deployments/{found['id']}/create_flow_run", {"parameters": {"form": form}})
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        flow_run = call(env, f"/flow_runs/{made['id']}")
        if flow_run["state_type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}:
            return flow_run
        time.sleep(1.0)
    raise AssertionError(f"waited {timeout} s for {deployment}: {flow_run['state']}")


def tiny_form(settings: list[str], tiny_model: Path) -> dict[str, Any]:
    named = {"environment.id", "name", "data.eval_examples", "eval.temperature"}
    rest = [line for line in settings if line.partition("=")[0] not in named]
    return {
        "name": "form",
        "environment": "tiny-digits",
        "model": str(tiny_model),
        "settings": rest,
    }


def test_an_evaluation_is_triggered_through_the_api(
    services: dict[str, str], tiny_model: Path
) -> None:
    env = services
    form = tiny_form([], tiny_model) | {
        "eval_examples": 30,
        "temperature": 1.0,
        "settings": ["inference.max_context=256", "eval.max_tokens=4", "data.synth_examples=8",
                     "data.train_examples=8"],
    }  # fmt: skip
    schema = call(env, "/deployments/name/evaluate/nightly")["parameter_openapi_schema"]
    assert "EvaluationForm" in json.dumps(schema)
    flow_run = trigger(env, "evaluate/nightly", form, timeout=240)
    assert flow_run["state_type"] == "COMPLETED", flow_run["state"]

    folder = next(Path(env["VF_RUNS"]).iterdir())
    result = json.loads((folder / "evaluate-base" / "result.json").read_text())
    assert result["reward"]["n"] == 30
    assert 0.1 < result["reward"]["mean"] < 0.9
    artifacts = call(
        env, "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run["id"]]}}}
    )
    assert {"evaluation-form", "stages-form", "mlflow-form"} <= {a["key"] for a in artifacts}
    facts = json.loads((folder / "manifest.json").read_text())["facts"]
    assert facts["prefect_flow_run"] == flow_run["id"]
    run = mlflow_run(env, facts["mlflow_runs"]["evaluate-base"])
    assert run["info"]["status"] == "FINISHED"
    metrics = {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}
    assert metrics["reward/mean"] == pytest.approx(result["reward"]["mean"])


@pytest.mark.slow
def test_the_chain_sends_each_stage_to_its_pool(
    services: dict[str, str], tiny_model: Path, small: list[str]
) -> None:
    form = tiny_form(small, tiny_model) | {"execution": "deployments"}
    keys = {"data.synth_examples", "synth.rollouts_per_example", "sft.lr"} | {
        f"grpo.{name}" for name in ("steps", "groups", "group_size", "lr")
    }
    form["settings"] = [s for s in form["settings"] if s.partition("=")[0] not in keys]
    form |= {
        "eval_examples": 60, "synth_examples": 60, "synth_rollouts": 2, "sft_lr": 3e-4,
        "grpo_steps": 4, "grpo_groups": 4, "grpo_group_size": 4, "grpo_lr": 1e-3,
    }  # fmt: skip
    form["settings"].append("eval.temperature=1.0")
    flow_run = trigger(services, "pipeline/chain", form, timeout=900)
    assert flow_run["state_type"] == "COMPLETED", flow_run["state"]
    stages = call(services, "/flow_runs/filter", {"flows": {"name": {"any_": ["stage"]}}})
    pools = {run["parameters"]["stage"]: run["work_pool_name"] for run in stages}
    assert pools["prepare"] == pools["promote"] == "vf-cpu"
    assert pools["grpo"] == pools["evaluate-prompted"] == pools["sft"] == "vf-gpu"
    assert len(pools) == 9


def mlflow_run(env: dict[str, str], run_id: str) -> Any:
    url = f"http://127.0.0.1:{env['VF_MLFLOW_PORT']}/api/2.0/mlflow/runs/get?run_id={run_id}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())["run"]


@pytest.mark.slow
def test_a_stage_that_fails_on_its_pool_fails_the_command_alike(
    services: dict[str, str], chain_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """The environment can be imported here, and not where the workers run: a ConfigError there."""
    source = ROOT / "tests" / "e2e" / "environments" / "tiny_digits.py"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "only_here.py").write_text(source.read_text())
    path = os.pathsep.join([services["PYTHONPATH"], str(tmp_path / "here")])
    done = subprocess.run(
        chain_command('environment.id="only-here"', 'execution="deployments"'),
        env=services | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: prepare: unknown environment 'only-here'" in done.stderr
    handed = json.loads(next(Path(services["VF_RUNS"]).glob("*/stages/prepare.json")).read_text())
    assert handed["error"]["kind"] == "UnknownNameError"
    stages = call(services, "/flow_runs/filter", {"flows": {"name": {"any_": ["stage"]}}})
    assert [(run["id"], run["state_type"]) for run in stages] == [(handed["flow_run"], "FAILED")]
