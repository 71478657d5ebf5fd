"""Pools, workers and deployments on loopback: triggered through the API, found in the record."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.browser import Page, browser, find_chromium
from vf_pipeline.processes import ManagedProcess

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def services(
    project_in: Callable[[Path], dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Start server, pools, workers and MLflow on free ports; end them, and see that they ended."""
    env = project_in(tmp_path_factory.mktemp("services")) | {
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
    """Return the API's answer.

    On sqlite two writers may meet. Prefect then answers 503, which asks for another try, and has
    kept nothing; its own client tries again as well.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{env['VF_PREFECT_PORT']}/api{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    for pause_s in (0.2, 0.5, 1.0, 2.0, 4.0):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(pause_s)
    raise AssertionError(f"{path}: still 503")


def start(env: dict[str, str], deployment: str, form: dict[str, Any]) -> str:
    """Start a deployment as the UI does, and return the id of its flow run."""
    found = call(env, f"/deployments/name/{deployment}")
    made = call(env, f"/deployments/{found['id']}/create_flow_run", {"parameters": {"form": form}})
    return str(made["id"])


def ended(env: dict[str, str], flow_run_id: str, timeout_s: float) -> Any:
    """Return a flow run when it has ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        flow_run = call(env, f"/flow_runs/{flow_run_id}")
        if flow_run["state_type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}:
            return flow_run
        time.sleep(1.0)
    raise AssertionError(f"waited {timeout_s} s for {flow_run['name']}: {flow_run['state']}")


def evaluation_form(tiny_model: Path, name: str, **more: Any) -> dict[str, Any]:
    """Return the form of a small evaluation."""
    return {
        "name": name,
        "environment": "tiny-digits",
        "model": str(tiny_model),
        "data": {"eval_examples": 30},
        "eval": {"max_tokens": 4, "temperature": 1.0},
        "settings": ["inference.max_context=256"],
    } | more


def run_folder(env: dict[str, str], name: str) -> Path:
    [folder] = Path(env["VF_RUNS"]).glob(f"{name}-*")
    return folder


def test_an_evaluation_is_triggered_through_the_api(
    services: dict[str, str], tiny_model: Path
) -> None:
    env = services
    schema = call(env, "/deployments/name/evaluate/on-demand")["parameter_openapi_schema"]
    assert "EvaluationForm" in json.dumps(schema)
    started = start(env, "evaluate/on-demand", evaluation_form(tiny_model, "alone"))
    flow_run = ended(env, started, timeout_s=240)
    assert flow_run["state_type"] == "COMPLETED", flow_run["state"]
    assert flow_run["name"] == f"alone-tiny-digits-{tiny_model}"

    folder = run_folder(env, "alone")
    result = json.loads((folder / "evaluate-base" / "result.json").read_text())
    assert result["reward"]["n"] == 30
    assert 0.1 < result["reward"]["mean"] < 0.9
    artifacts = call(
        env, "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run["id"]]}}}
    )
    assert {"evaluation-alone", "stages-alone", "mlflow-alone"} <= {a["key"] for a in artifacts}
    facts = json.loads((folder / "manifest.json").read_text())["facts"]
    assert facts["prefect_flow_run"] == flow_run["id"]
    run = mlflow_run(env, facts["mlflow_runs"]["evaluate-base"])
    assert run["info"]["status"] == "FINISHED"
    metrics = {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}
    assert metrics["reward/mean"] == pytest.approx(result["reward"]["mean"])


def test_a_form_that_lacks_a_model_is_refused_at_once(services: dict[str, str]) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        start(services, "evaluate/on-demand", {"environment": "tiny-digits"})
    assert "'model' is a required property" in caught.value.read().decode()


def test_evaluations_that_are_asked_for_at_once_are_all_done(
    services: dict[str, str], tiny_model: Path
) -> None:
    """Two with the very same settings, and one with others."""
    same = evaluation_form(tiny_model, "same")
    forms = [same, same, evaluation_form(tiny_model, "other", seed=1)]
    started = [start(services, "evaluate/on-demand", form) for form in forms]
    states = [ended(services, each, timeout_s=300)["state"] for each in started]
    assert [state["type"] for state in states] == ["COMPLETED"] * 3, states
    for name in ("same", "other"):
        result = run_folder(services, name) / "evaluate-base" / "result.json"
        assert json.loads(result.read_text())["reward"]["n"] == 30


def test_a_model_behind_an_endpoint_is_measured_on_the_cpu_pool(
    services: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "vf_pipeline.cli.serve", str(tiny_model), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    form = evaluation_form(tiny_model, "endpoint", model=tiny_model.name, settings=[])
    form["inference"] = {"base_url": f"{url}/v1"}
    with ManagedProcess(
        "endpoint",
        [*command, "--max-context", "256"],
        log_path=tmp_path / "endpoint.log",
        env=services,
        ready_url=f"{url}/health",
    ):
        started = [start(services, "evaluate-endpoint/on-demand", form) for _ in range(2)]
        flow_runs = [ended(services, each, timeout_s=240) for each in started]
    for flow_run in flow_runs:
        assert flow_run["state_type"] == "COMPLETED", flow_run["state"]
        assert flow_run["work_pool_name"] == "vf-cpu"
    folder = run_folder(services, "endpoint")
    assert not (folder / "logs" / "engine.log").exists()
    result = json.loads((folder / "evaluate-base" / "result.json").read_text())
    assert result["counts"]["scored"] == 30


@pytest.mark.slow
def test_a_click_in_the_form_starts_an_evaluation(
    services: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    deployment = call(services, "/deployments/name/evaluate/on-demand")["id"]
    flow_run = ended(
        services,
        asyncio.run(fill_in(services, deployment, tiny_model, chromium, tmp_path)),
        timeout_s=240,
    )
    assert flow_run["state_type"] == "COMPLETED", flow_run["state"]
    assert flow_run["name"] == f"clicked-tiny-digits-{tiny_model}"
    typed = flow_run["parameters"]["form"]
    assert (typed["environment"], typed["model"]) == ("tiny-digits", str(tiny_model))
    assert typed["data"] == {"eval_examples": 30}
    result = run_folder(services, "clicked") / "evaluate-base" / "result.json"
    assert json.loads(result.read_text())["reward"]["n"] == 30


async def fill_in(
    env: dict[str, str], deployment: str, tiny_model: Path, chromium: str, folder: Path
) -> str:
    """Fill the form in as a person does, submit it, and return the id of the flow run."""
    root = f"http://127.0.0.1:{env['VF_PREFECT_PORT']}"
    async with browser(chromium, folder) as page:
        await page.open(root)
        # Where the server's own address leads is the UI that people see; its form is taken.
        ui = (await page.until("location.href.includes('/dashboard') && location.href")).partition(
            "/dashboard"
        )[0]
        await page.open(f"{ui}/deployments/deployment/{deployment}/run")
        for label in ("Environment", "Model"):
            await page.until(f"!!{field(label)}")
            assert "(Optional)" not in await page.read(f"{field(label)}.innerText")

        await page.click(f"{field('Environment')}.querySelector('[aria-label^=Select]')")
        await page.until("document.querySelector('[role=option]')?.innerText === 'number-sense'")
        await page.click("document.querySelector('[role=option]')")

        await page.type(f"{field('Name (Optional)')}.querySelector('textarea')", "clicked")
        for label, text in (("Environment", "tiny-digits"), ("Model", str(tiny_model))):
            await page.click(f"{field(label)}.querySelectorAll('[role=tab]')[1]")
            await page.type(f"{field(label)}.querySelector('textarea')", text)
        for label, text in (
            ("Held-out examples", "30"),
            ("Max tokens", "4"),
            ("Temperature", "1"),
        ):
            await page.type(f"{field(label + ' (Optional)')}.querySelector('input')", text)
        await page.click(button("Add item"))
        further = field("Further settings (Optional)")
        await page.type(f"{further}.querySelector('textarea')", "inference.max_context=256")
        await page.picture(folder / "form.png")
        while await submitted(page) == "refused":
            # Two writers met on sqlite, as ``call`` explains: a person clicks again, too.
            await page.until("!document.body.innerText.includes('Error creating flow run')")
    runs = call(env, "/flow_runs/filter", {"deployments": {"id": {"any_": [deployment]}}})
    [clicked] = [run for run in runs if run["parameters"]["form"]["name"] == "clicked"]
    return str(clicked["id"])


async def submitted(page: Page) -> Any:
    """Click on Submit, and return whether the form was taken: the page is left, or says why not."""
    await page.click(button("Submit"))
    return await page.until(
        "!location.href.endsWith('/run') ? 'taken'"
        " : document.body.innerText.includes('Service Unavailable') && 'refused'"
    )


def field(label: str) -> str:
    """Return the JavaScript that finds a field of the form, with all that belongs to it."""
    return (
        "[...document.querySelectorAll('label')]"
        f".find(e => e.innerText.trim() === {json.dumps(label)})?.closest('.group')"
    )


def button(text: str) -> str:
    """Return the JavaScript that finds a button."""
    return (
        "[...document.querySelectorAll('button')]"
        f".find(e => e.innerText.trim() === {json.dumps(text)})"
    )


@pytest.mark.slow
def test_the_chain_sends_each_stage_to_its_pool(services: dict[str, str], tiny_model: Path) -> None:
    form = evaluation_form(
        tiny_model,
        "chain",
        data={"eval_examples": 60, "synth_examples": 60, "train_examples": 120},
        synth={"rollouts_per_example": 2, "max_tokens": 4},
        sft={"lr": 3e-4},
        grpo={"steps": 4, "groups": 4, "group_size": 4, "lr": 1e-3, "max_tokens": 4},
        settings=[
            "inference.max_context=256",
            "inference.max_batch=32",
            "synth.min_rows=8",
            "grpo.save_steps=2",
        ],
    )
    flow_run = ended(services, start(services, "pipeline/chain", form), timeout_s=900)
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
        chain_command('name="only"', 'environment.id="only-here"', 'execution="deployments"'),
        env=services | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: prepare: unknown environment 'only-here'" in done.stderr
    (file,) = Path(services["VF_RUNS"]).glob("only-*/stages/prepare.json")
    handed = json.loads(file.read_text())
    assert handed["error"]["kind"] == "UnknownNameError"
    stages = call(services, "/flow_runs/filter", {"flows": {"name": {"any_": ["stage"]}}})
    of_this = [run for run in stages if run["parameters"]["run"] == file.parents[1].name]
    assert [(run["id"], run["state_type"]) for run in of_this] == [(handed["flow_run"], "FAILED")]
