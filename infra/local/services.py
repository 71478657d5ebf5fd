"""The servers people look at: Prefect's and MLflow's, as commands."""

import sys
from dataclasses import dataclass

from infra.local.addresses import mlflow_port, mlflow_ui, prefect_api, prefect_port
from vf_pipeline.runs import artifacts_dir, state_dir


@dataclass(frozen=True, slots=True)
class Service:
    """A server on loopback: its name, its command, the address that answers when it is ready."""

    name: str
    command: list[str]
    ready_url: str = ""


def prefect_service() -> Service:
    """Return the Prefect server at its usual address."""
    port = str(prefect_port())
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    return Service("prefect-server", [*command, "--port", port], f"{prefect_api()}/health")


def mlflow_service() -> Service:
    """Return the MLflow server on the project's database."""
    state_dir().mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
        *("--port", str(mlflow_port()), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{state_dir().absolute() / 'mlflow.db'}"),
        *("--default-artifact-root", str(artifacts_dir())),
    ]
    return Service("mlflow-server", command, f"{mlflow_ui()}/health")


def worker_service(pool: str) -> Service:
    """Return a process worker of a pool."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
    name = f"worker-{pool}"
    return Service(name, [*command, "--pool", pool, "--name", name])
