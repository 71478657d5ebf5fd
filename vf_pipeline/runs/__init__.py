"""One run's folder: where it lies, who works on it, what is done, and what must be there first."""

from vf_pipeline.runs.manifest import Manifest, StageRecord
from vf_pipeline.runs.places import (
    artifacts_dir,
    mlflow_uri,
    project_dir,
    run_dir_of,
    runs_dir,
    state_dir,
)
from vf_pipeline.runs.run import Run, open_run, read_run_config

__all__ = [
    "Manifest",
    "Run",
    "StageRecord",
    "artifacts_dir",
    "mlflow_uri",
    "open_run",
    "project_dir",
    "read_run_config",
    "run_dir_of",
    "runs_dir",
    "state_dir",
]
