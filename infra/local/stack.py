"""Start and end what stays on one machine: a Prefect server, two workers, an MLflow server."""

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

from infra.local.addresses import mlflow_ui, prefect_api, prefect_ui
from infra.local.prefect_server import database_lock, prefect_environment
from infra.local.reconcile import reconcile
from infra.local.services import Service, mlflow_service, prefect_service, worker_service
from vf_pipeline.errors import PrerequisiteError, ProcessError
from vf_pipeline.processes import answers
from vf_pipeline.processes.services import Services
from vf_pipeline.runs import project_dir, state_dir
from vf_pipeline.runs.lock import hold_lock

READY_TIMEOUT_S = 180.0
POOLS = ("vf-cpu", "vf-gpu")
_LOCK = "services.lock"


def up() -> int:
    """Start what is not running yet, make the pools, and deploy; return 0.

    Raises:
        ProcessError: a server or a worker did not become ready; what was started here is ended.
        PrerequisiteError: a port is taken, or a run has the project's database.
    """
    os.environ.update(prefect_environment() | {"PREFECT_API_URL": prefect_api()})
    os.environ |= {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    # One at a time: two would start the same service twice, and one of them would be forgotten.
    with hold_lock(state_dir(), _LOCK, wait_s=READY_TIMEOUT_S):
        _up()
    sys.stdout.write(f"Prefect: {prefect_ui()}\nMLflow:  {mlflow_ui()}\nend them: make down\n")
    return 0


def _up() -> None:
    services, started = _services(), list[str]()
    try:
        if not services.running(prefect_service().name):
            # Held for the start alone: once it answers, runs find it and start none of their own.
            with database_lock():
                _start(services, prefect_service(), started)
        _start(services, mlflow_service(), started)
        _bootstrap()
        for pool in POOLS:
            _start_worker(services, pool, started)
        _check_workers(services)
        reconcile()
    except BaseException:
        _end(services, started)
        raise


def down() -> int:
    """End every process that `up` started, workers first; return 0."""
    services = _services()
    with hold_lock(state_dir(), _LOCK, wait_s=READY_TIMEOUT_S):
        if not _end(services, services.names()):
            sys.stderr.write("nothing was running\n")
    return 0


def _services() -> Services:
    state = state_dir()
    return Services(state / "services.json", state / "logs", project_dir())


def _start(services: Services, service: Service, started: list[str]) -> None:
    """Start a server unless it runs; its name is added to ``started``."""
    if services.running(service.name):
        return
    if answers(service.ready_url):
        raise PrerequisiteError(
            f"something else answers at {service.ready_url}",
            "end it, or choose other ports with VF_PREFECT_PORT and VF_MLFLOW_PORT",
        )
    # Before the start: one that is not ready in time runs all the same, and has to be ended.
    started.append(service.name)
    services.start(
        service.name,
        service.command,
        ready=lambda: answers(service.ready_url),
        timeout_s=READY_TIMEOUT_S,
        awaited=f"ready at {service.ready_url}",
    )


def _start_worker(services: Services, pool: str, started: list[str]) -> None:
    """Start a pool's worker unless it runs, and wait until the server knows it as online."""
    service = worker_service(pool)
    if services.running(service.name):
        return
    before = _heartbeat(pool, service.name)
    started.append(service.name)
    # A worker that merely lives may still die of a bad setting or a missing package: it is ready
    # when the server has heard its heartbeat, and not that of an earlier worker of its name.
    services.start(
        service.name,
        service.command,
        ready=lambda: _heartbeat(pool, service.name) not in ("", before),
        timeout_s=READY_TIMEOUT_S,
        awaited=f"online in the pool {pool}",
    )


def _heartbeat(pool: str, worker: str) -> str:
    """Return when the server last heard of an online worker, or "" if it has not.

    A server that is slow to answer while workers start beside it has not heard anything yet.
    """
    try:
        workers = _ask(f"/work_pools/{pool}/workers/filter", {})
    except (OSError, ValueError):
        return ""
    for found in workers:
        if found["name"] == worker and found["status"] == "ONLINE":
            return str(found["last_heartbeat_time"])
    return ""


def _check_workers(services: Services) -> None:
    """Raise if a worker has died while the others were started."""
    for pool in POOLS:
        name = worker_service(pool).name
        if not services.running(name):
            log = state_dir() / "logs" / f"{name}.log"
            raise ProcessError(f"{name} died soon after its start", f"see {log}")


def _ask(route: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        prefect_api() + route,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    # No proxy: the server is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10.0) as answer:
        return json.loads(answer.read())


def _bootstrap() -> None:
    """Make pools and deployments; in a process of its own, as an operator would."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.bootstrap"],
        cwd=project_dir(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    if done.returncode:
        said = [line.strip(" │╰╭─╯╮") for line in f"{done.stdout}\n{done.stderr}".splitlines()]
        last = [line for line in said if line][-1:] or [f"exit code {done.returncode}"]
        raise ProcessError(f"deploying failed: {last[0]}", "see deployments/prefect.yaml")


def _end(services: Services, names: list[str]) -> int:
    """End services with all that they started, workers first; return how many still ran."""
    ended = 0
    for name in sorted(names, key=lambda name: not name.startswith("worker")):
        if services.end(name):
            sys.stderr.write(f"ended {name}\n")
            ended += 1
    return ended
