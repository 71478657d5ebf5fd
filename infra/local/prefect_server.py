"""The Prefect server a run talks to: the one that stays (`make up`), or one for its duration."""

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.addresses import mlflow_ui, prefect_api, prefect_ui
from vf_pipeline.errors import PrerequisiteError
from vf_pipeline.processes import ManagedProcess, answers, free_port
from vf_pipeline.runs import state_dir


def prefect_environment() -> dict[str, str]:
    """Return the environment of the project's own Prefect: its home, and no telemetry."""
    return {
        "PREFECT_HOME": str(state_dir().absolute() / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # Without a server, Prefect would start one by itself, on the same database.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,infra,vf_pipeline",
        # Where the pages are, for the links that runs leave in Prefect and in MLflow.
        "VF_PREFECT_UI": prefect_ui(),
        "VF_MLFLOW_UI": mlflow_ui(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # The servers are this machine's own: never through a proxy.
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"])),
    }


def is_up(api: str) -> bool:
    """Return whether a Prefect server answers."""
    return answers(f"{api}/health")


def check_server() -> None:
    """Make sure that a server which stays answers: stages are sent to its work pools.

    Raises:
        PrerequisiteError: none does.
    """
    if not is_up(os.environ.get("PREFECT_API_URL") or prefect_api()):
        raise PrerequisiteError(
            "execution = 'deployments' needs a Prefect server and workers that stay", "make up"
        )


@contextmanager
def prefect_server(log_dir: Path, *, quiet: bool = True) -> Iterator[str]:
    """Yield the API address of a server, set in this process's environment.

    Call it before Prefect is imported: Prefect reads its settings then.

    Raises:
        PrerequisiteError: PREFECT_API_URL names a server that does not answer, or another run of
            this project holds the project's database.
        ProcessError: the server did not become ready.
    """
    os.environ.update(prefect_environment())
    if quiet:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    named = os.environ.get("PREFECT_API_URL", "")
    if named and not is_up(named):
        raise PrerequisiteError(
            f"no Prefect server answers at PREFECT_API_URL={named}",
            "start it, or unset the variable",
        )
    if named or is_up(prefect_api()):
        api = named or prefect_api()
        os.environ["PREFECT_API_URL"] = api
        os.environ.setdefault("VF_PREFECT_UI", api.removesuffix("/api"))
        yield api
        return
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start"]
    with (
        database_lock(),
        ManagedProcess(
            "prefect-server",
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            log_path=log_dir / "prefect-server.log",
            env=prefect_environment(),
            ready_url=f"{api}/health",
            ready_timeout_s=180.0,
        ),
    ):
        os.environ["PREFECT_API_URL"] = api
        try:
            yield api
        finally:
            # While the server still answers: it gets the last lines.
            _stop_sending_logs()
            os.environ.pop("PREFECT_API_URL", None)


def _stop_sending_logs() -> None:
    """Send what is left to the server and let go of it: what is logged later has nowhere to go."""
    if "prefect.logging.handlers" not in sys.modules:
        return
    from prefect.logging.handlers import APILogHandler, APILogWorker

    APILogWorker.drain_all(timeout=10)
    for name in ("flows", "vf_pipeline", "prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        for handler in [h for h in logger.handlers if isinstance(h, APILogHandler)]:
            logger.removeHandler(handler)


@contextmanager
def database_lock() -> Iterator[None]:
    """Hold the project's Prefect database: sqlite serves one server well, not two."""
    path = state_dir() / "prefect" / "server.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock goes with the descriptor, also when this process is killed.
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrerequisiteError(
                "another run of this project has started its own Prefect server",
                "wait for it, or `make up` once so that runs share a server",
            ) from None
        yield
