"""The record of a whole flow in MLflow, and links both ways between it and the Prefect run."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.runtime import flow_run

from tasks.addresses import prefect_ui
from tasks.artifacts import publish_link
from tasks.run import Run


@contextmanager
def recorded(run: Run) -> Iterator[None]:
    """Keep the run's MLflow record open for the block, with the Prefect run's address in it."""
    flow_run_id = flow_run.get_id()
    url = f"{prefect_ui()}/runs/flow-run/{flow_run_id}" if flow_run_id else ""
    with run.start_tracker("") as parent:
        parent.set_tags({"prefect.flow_run_id": flow_run_id or "", "prefect.flow_run_url": url})
        parent.log_params(run.config.model_dump(exclude={"execution"}))
        run.manifest.note(prefect_flow_run=flow_run_id, prefect_url=url, mlflow_url=parent.url)
        publish_link(run)
        yield
