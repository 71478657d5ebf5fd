"""A real MLflow server, killed while a run logs to it, and started again."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from vf_pipeline.processes import ManagedProcess, free_port
from vf_pipeline.tracking import MlflowTracker, mlflow_tracker

pytest.importorskip("mlflow")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@contextmanager
def server(folder: Path, port: int) -> Iterator[ManagedProcess]:
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"),
        *("--port", str(port), "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--default-artifact-root", str(folder / "artifacts")),
    ]
    url = f"http://127.0.0.1:{port}/health"
    log = folder / "server.log"
    with ManagedProcess("mlflow", command, log_path=log, ready_url=url) as process:
        yield process


def kill(process: ManagedProcess) -> None:
    root = psutil.Process(process.pid)
    for one in [*root.children(recursive=True), root]:
        # A child may have ended by itself meanwhile: what counts is that none is left.
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(timeout=10.0)


def test_nothing_is_lost_while_the_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VF_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    at_once = mlflow_tracker._ON_THE_WAY._replace(rest_s=0.0)
    monkeypatch.setattr(mlflow_tracker, "_ON_THE_WAY", at_once)
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    note = tmp_path / "note.txt"
    note.write_text("hello")
    spools = tmp_path / "state" / "spool"
    with server(tmp_path, port) as process:
        long = MlflowTracker.start(uri, "vf/away", "long")
        short = MlflowTracker.start(uri, "vf/away", "short")
        long.log_metrics({"loss": 1.0}, 1)
        short.log_metrics({"loss": 1.0}, 1)
        kill(process)
        for step in (2, 3):
            long.log_metrics({"loss": 1.0 / step}, step)
        long.log_artifact(note)
        short.log_metrics({"loss": 0.5}, 2)
        short.log_params({"lr": 1e-5})
        short.close("FAILED")
    assert {path.stem for path in spools.glob("*.jsonl")} == {long.run_id, short.run_id}

    with server(tmp_path, port):
        long.log_metrics({"loss": 0.25}, 4)
        long.close()
        client = long._sender.client
        history = client.get_metric_history(long.run_id, "loss")
        assert [point.step for point in history] == [1, 2, 3, 4]
        times = [point.timestamp for point in history]
        assert times == sorted(times)
        assert [found.path for found in client.list_artifacts(long.run_id)] == ["note.txt"]
        assert client.get_run(long.run_id).info.status == "FINISHED"
        # The process of the other run is gone: whoever starts next sends what it left.
        assert client.get_run(short.run_id).info.status == "RUNNING"
        MlflowTracker.start(uri, "vf/away", "next").close()
        run = client.get_run(short.run_id)
        assert (run.info.status, run.data.params) == ("FAILED", {"lr": "1e-05"})
        assert [p.step for p in client.get_metric_history(short.run_id, "loss")] == [1, 2]
    assert list(spools.glob("*.jsonl")) == []
    assert os.listdir(tmp_path / "artifacts") != []
