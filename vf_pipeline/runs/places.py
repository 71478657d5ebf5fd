"""Where runs and the project's own state lie on this disk."""

import os
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig


def project_dir() -> Path:
    """Return the project's folder: $VF_PIPELINE_HOME, the checkout of this library, or here."""
    named = os.environ.get("VF_PIPELINE_HOME")
    if named:
        return Path(named).absolute()
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "flows").is_dir() else Path.cwd()


def state_dir() -> Path:
    """Return the project's own state: Prefect's and MLflow's databases, logs of services."""
    return Path(os.environ.get("VF_STATE") or project_dir() / ".vf").absolute()


def artifacts_dir() -> Path:
    """Return the folder of MLflow's artifacts."""
    return state_dir() / "artifacts"


def runs_dir() -> Path:
    """Return the folder that holds all run directories."""
    return Path(os.environ.get("VF_RUNS") or project_dir() / "runs").absolute()


def run_dir_of(config: PipelineConfig) -> Path:
    """Return the run directory of a config: the same settings find the same folder again."""
    # Where stages run changes nothing about what they make.
    settings = config.model_dump(exclude={"execution"})
    return runs_dir() / f"{config.name}-{storage.digest_json(settings)[:10]}"


def mlflow_uri(config: PipelineConfig) -> str:
    """Return the tracking URI: the one configured, or the sqlite file under the state folder."""
    if config.tracking.mlflow_uri:
        return config.tracking.mlflow_uri
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    return server or f"sqlite:///{state_dir() / 'mlflow.db'}"
