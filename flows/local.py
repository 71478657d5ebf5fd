"""Start and end what stays on one machine: a Prefect server, two workers, an MLflow server."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from flows.server import database_lock, prefect_environment
from flows.services import Service, mlflow_service, prefect_service, worker_service
from tasks.addresses import mlflow_ui, prefect_api, prefect_ui
from tasks.run import ROOT, state_dir
from vf_pipeline import storage
from vf_pipeline.errors import PrerequisiteError, ProcessError
from vf_pipeline.serving.process import TAG_VAR, answers
from vf_pipeline.serving.process_tree import end_tree, find_tree, started_at

READY_TIMEOUT_S = 180.0
GRACE_S = 20.0
SETTLE_S = 3.0


def up() -> int:
    """Start what is not running yet, make the pools, and deploy; return 0.

    Raises:
        ProcessError: a server did not become ready; what was started here is ended again.
        PrerequisiteError: a port is taken, or a run has the project's database.
    """
    os.environ.update(prefect_environment() | {"PREFECT_API_URL": prefect_api()})
    os.environ |= {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    started: list[str] = []
    try:
        if not _alive(_records().get(prefect_service().name)):
            with database_lock():
                _start(prefect_service(), started)
        _start(mlflow_service(), started)
        _bootstrap()
        for pool in ("vf-cpu", "vf-gpu"):
            _start(worker_service(pool), started)
    except BaseException:
        _end(started)
        raise
    sys.stdout.write(f"Prefect: {prefect_ui()}\nMLflow:  {mlflow_ui()}\nend them: make down\n")
    return 0


def down() -> int:
    """End every process that `up` started, workers first; return 0."""
    _end(list(_records()))
    return 0


def _start(service: Service, started: list[str]) -> None:
    """Start a service unless it runs; its name is added to ``started``."""
    if _alive(_records().get(service.name)):
        return
    if service.ready_url and answers(service.ready_url):
        raise PrerequisiteError(
            f"something else answers at {service.ready_url}",
            "end it, or choose other ports with VF_PREFECT_PORT and VF_MLFLOW_PORT",
        )
    log_path = state_dir() / "logs" / f"{service.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    tag = uuid.uuid4().hex
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            service.command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {TAG_VAR: tag},
            start_new_session=True,
        )
    record = {"pid": process.pid, "started_at": started_at(process.pid), "tag": tag}
    storage.write_json(_record_path(), _records() | {service.name: record})
    started.append(service.name)
    _await_ready(service, process, log_path)


def _await_ready(service: Service, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
    deadline = time.monotonic() + (READY_TIMEOUT_S if service.ready_url else SETTLE_S)
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise ProcessError(f"{service.name} died: {' / '.join(tail)}", f"see {log_path}")
        if service.ready_url and answers(service.ready_url):
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


def _end(names: list[str]) -> None:
    """End services with all that they started, workers first, and forget them."""
    for name in sorted(names, key=lambda name: not name.startswith("worker")):
        records = _records()
        record = records.pop(name)
        tree = find_tree(record["pid"], TAG_VAR, record["tag"], record["started_at"])
        if tree:
            end_tree(tree, GRACE_S)
            sys.stderr.write(f"ended {name}\n")
        storage.write_json(_record_path(), records)


def _alive(record: dict[str, Any] | None) -> bool:
    """Return whether the recorded process still is that one: pids are used again."""
    if record is None:
        return False
    same = abs(started_at(record["pid"]) - record["started_at"]) < 1.0
    return same and psutil.Process(record["pid"]).status() != psutil.STATUS_ZOMBIE


def _record_path() -> Path:
    return state_dir() / "services.json"


def _records() -> dict[str, Any]:
    return dict(storage.read_json(_record_path())) if storage.exists(_record_path()) else {}
