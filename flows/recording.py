"""One run around a flow: opened, its engine at hand, and recorded in MLflow and Prefect alike."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prefect.runtime import flow_run

from infra.local.reconcile import process_facts
from tasks.publish_artifacts import publish_link
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.runs import Run, open_run
from vf_pipeline.serving.session import EngineSession


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a stage works with: its run, and the engine that serves the run's models."""

    run: Run
    engine: EngineSession


@contextmanager
def opened(
    config: PipelineConfig, *, fresh: bool = False, of_chain: bool = False, wait_s: float = 0.0
) -> Iterator[Workplace]:
    """Yield a run with its engine; the engine is started when a stage first needs it."""
    with (
        open_run(config, fresh=fresh, of_chain=of_chain, wait_s=wait_s) as run,
        EngineSession(config.inference, run.folder) as engine,
    ):
        yield Workplace(run, engine)


@contextmanager
def recorded(
    config: PipelineConfig, *, fresh: bool = False, wait_s: float = 0.0
) -> Iterator[Workplace]:
    """Yield a run whose MLflow record is open, with links both ways between it and Prefect."""
    flow_run_id = flow_run.get_id()
    ui = os.environ.get("VF_PREFECT_UI", "")
    url = f"{ui}/runs/flow-run/{flow_run_id}" if flow_run_id and ui else ""
    with opened(config, fresh=fresh, wait_s=wait_s) as here:
        note = here.run.manifest.note
        # At once: if this process is killed, these two tell which flow run ended with it.
        note(prefect_flow_run=flow_run_id, prefect_url=url, process=process_facts())
        with here.run.start_tracker("") as parent:
            parent.set_tags({"prefect.flow_run_id": flow_run_id or "", "prefect.flow_run_url": url})
            parent.log_params(config.model_dump(exclude={"execution"}))
            note(mlflow_url=parent.url)
            publish_link(here.run)
            yield here
