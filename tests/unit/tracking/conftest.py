"""A sqlite store of MLflow, made once."""

import os
import subprocess
import sys
from typing import Any

import pytest

CODE = """
import os, sys
from vf_pipeline import tracking
assert "mlflow" not in sys.modules
tracking.MlflowTracker.start(sys.argv[1], "vf/quiet", "run").close()
assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
import mlflow
assert mlflow.active_run() is None
"""


@pytest.fixture(scope="session")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A new store, and the process of its own that made it (which takes seconds)."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'new' / 'mlflow.db'}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    command = [sys.executable, "-W", "ignore", "-c", CODE, uri]
    return uri, subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.fixture(scope="session")
def uri(first_start: tuple[str, Any]) -> str:
    return first_start[0]
