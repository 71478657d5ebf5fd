"""A training that is killed and goes on: MLflow has each step once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vf_pipeline.configs import SftSettings
from vf_pipeline.tracking import MlflowTracker
from vf_pipeline.training.metrics import read_metrics
from vf_pipeline.training.spec import TrainSpec, finished_result, write_spec
from vf_pipeline.types import ModelRef

pytest.importorskip("mlflow")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

STEPS = 60


def test_a_killed_training_has_each_step_once(
    tiny: ModelRef, rows_file: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    parent = MlflowTracker.start(uri, "vf/killed", "sft")
    spec = TrainSpec(
        kind="sft",
        model_dir=tiny.uri,
        model_digest=tiny.digest,
        output_dir=str(tmp_path / "sft" / "model"),
        work_dir=str(tmp_path / "sft"),
        rows_uri=str(rows_file),
        sft=SftSettings(epochs=STEPS, batch_rows=10, save_steps=8),
        tracking_uri=uri,
        tracking_run_id=parent.run_id,
    )
    command = [sys.executable, "-m", "vf_pipeline.training.trainer.process", str(write_spec(spec))]
    metrics = spec.work("metrics.jsonl")

    killed = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 120
    # Some steps past the second checkpoint, and short of the third.
    while len(read_metrics(metrics)) < 20:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(timeout=10)
    last = read_metrics(metrics)[-1]["step"]
    assert 20 <= last < STEPS

    subprocess.run(command, check=True, timeout=120)
    result = finished_result(spec)
    assert result is not None
    assert 0 < result.resumed_from < last, "steps were repeated"
    parent.close()
    history = parent._sender.client.get_metric_history(parent.run_id, "loss")
    assert sorted(point.step for point in history) == list(range(1, STEPS + 1))
    norms = parent._sender.client.get_metric_history(parent.run_id, "grad_norm")
    assert len(norms) == STEPS
