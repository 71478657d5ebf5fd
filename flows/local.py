"""Start and end what stays on one machine: a Prefect server, two workers, an MLflow server."""

import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import psutil

from flows.server import prefect_environment
from flows.services import Service, mlflow_service, prefect_service, worker_service
from tasks.addresses import mlflow_ui, prefect_api, prefect_ui
from tasks.run import ROOT, state_dir
from vf_pipeline import storage
from vf_pipeline.errors import PrerequisiteError, ProcessError

READY_TIMEOUT_S = 180.0
GRACE_S = 20.0


def up() -> int:
    """Start what is not running yet, make the pools, and deploy; return 0.

    Raises:
        ProcessError: a server did not become ready; everything started here is ended again.
    """
    os.environ.update(prefect_environment() | {"PREFECT_API_URL": prefect_api()})
    os.environ |= {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    try:
        for service in (prefect_service(), mlflow_service()):
            _start(service)
        _bootstrap()
        for pool in ("vf-cpu", "vf-gpu"):
            _start(worker_service(pool))
    except BaseException:
        down()
        raise
    sys.stdout.write(f"Prefect: {prefect_ui()}\nMLflow:  {mlflow_ui()}\nend them: make down\n")
    return 0


def down() -> int:
    """End every process that `up` started, workers first; return 0."""
    records = _records()
    for name in sorted(records, key=lambda name: not name.startswith("worker")):
        process = _alive(records[name])
        if process is not None:
            _end(process)
            sys.stderr.write(f"ended {name}\n")
    storage.remove(_record_path())
    return 0


def _start(service: Service) -> None:
    records = _records()
    if _alive(records.get(service.name)) is not None:
        return
    if service.ready_url and _answers(service.ready_url):
        raise PrerequisiteError(
            f"something else answers at {service.ready_url}",
            "end it, or choose other ports with VF_PREFECT_PORT and VF_MLFLOW_PORT",
        )
    log_path = state_dir() / "logs" / f"{service.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            service.command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            start_new_session=True,
        )
    started_at = psutil.Process(process.pid).create_time()
    records[service.name] = {"pid": process.pid, "created": started_at}
    storage.write_json(_record_path(), records)
    _await_ready(service, process)


def _await_ready(service: Service, process: "subprocess.Popen[bytes]") -> None:
    log_path = state_dir() / "logs" / f"{service.name}.log"
    deadline = time.monotonic() + (READY_TIMEOUT_S if service.ready_url else 3.0)
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise ProcessError(f"{service.name} died: {' / '.join(tail)}", f"see {log_path}")
        if service.ready_url and _answers(service.ready_url):
            return
        time.sleep(0.3)
    if service.ready_url:
        raise ProcessError(
            f"{service.name} did not answer at {service.ready_url} within {READY_TIMEOUT_S:.0f} s",
            f"see {log_path}",
        )


def _bootstrap() -> None:
    """Make pools and deployments; in a process of its own, as an operator would."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.bootstrap"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    if done.returncode:
        said = [line.strip(" │╰╭─╯╮") for line in f"{done.stdout}\n{done.stderr}".splitlines()]
        last = [line for line in said if line][-1:] or [f"exit code {done.returncode}"]
        raise ProcessError(f"deploying failed: {last[0]}", "see deployments/prefect.yaml")


def _end(process: psutil.Process) -> None:
    family = [process, *process.children(recursive=True)]
    for member in family:
        _signal(member, "terminate")
    _, alive = psutil.wait_procs(family, timeout=GRACE_S)
    for member in alive:
        _signal(member, "kill")
    psutil.wait_procs(alive, timeout=5)


def _signal(process: psutil.Process, how: str) -> None:
    try:
        getattr(process, how)()
    except psutil.NoSuchProcess:
        return


def _alive(record: dict[str, Any] | None) -> psutil.Process | None:
    """Return the recorded process if it still is that one: pids are used again, start times not."""
    if record is None:
        return None
    try:
        process = psutil.Process(record["pid"])
        same = abs(process.create_time() - record["created"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _record_path() -> Any:
    return state_dir() / "services.json"


def _records() -> dict[str, Any]:
    return dict(storage.read_json(_record_path())) if storage.exists(_record_path()) else {}
