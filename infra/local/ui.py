"""The Prefect and MLflow UIs on this project's records, until Ctrl-C."""

import sys
import time
from contextlib import ExitStack, suppress

from infra.local.addresses import mlflow_ui, prefect_api, prefect_ui
from infra.local.prefect_server import database_lock, is_up, prefect_environment
from infra.local.services import mlflow_service, prefect_service
from vf_pipeline.errors import PrerequisiteError
from vf_pipeline.processes import ManagedProcess, reap
from vf_pipeline.runs import state_dir


def serve_uis() -> int:
    """Start both UIs, print their addresses, and end them on Ctrl-C.

    Raises:
        PrerequisiteError: the servers are up already.
        ProcessError: a server did not become ready.
    """
    if is_up(prefect_api()):
        raise PrerequisiteError("the UIs are up already", f"open {prefect_ui()} and {mlflow_ui()}")
    record = state_dir() / "ui.json"
    with ExitStack() as stack:
        stack.enter_context(database_lock())
        # Under the lock, so that nobody else's servers are in that record.
        reap(record)
        running = [
            stack.enter_context(
                ManagedProcess(
                    service.name,
                    service.command,
                    log_path=state_dir() / "logs" / f"{service.name}.log",
                    env=prefect_environment(),
                    ready_url=service.ready_url,
                    ready_timeout_s=180.0,
                    record=record,
                )
            )
            for service in (prefect_service(), mlflow_service())
        ]
        sys.stdout.write(f"Prefect: {prefect_ui()}\nMLflow:  {mlflow_ui()}\nCtrl-C ends both\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            while True:
                for server in running:
                    server.check()
                time.sleep(1.0)
    return 0
