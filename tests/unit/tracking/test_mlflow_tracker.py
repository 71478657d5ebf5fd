"""MLflow on a real sqlite store: what is written, and what happens when it cannot be."""

import json
import logging
import math
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from vf_pipeline.errors import ConfigError, StorageError
from vf_pipeline.tracking import MlflowTracker, register_model
from vf_pipeline.types import DatasetRef

with warnings.catch_warnings():
    # What mlflow's own imports warn about is not ours to mend.
    warnings.simplefilter("ignore")
    pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_mlflow_is_imported_late_and_stays_quiet(first_start: tuple[str, Any]) -> None:
    done = first_start[1]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def fetch(tracker: MlflowTracker) -> Any:
    return tracker._sender.client.get_run(tracker.run_id)


def test_a_run_holds_what_was_logged(uri: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    parent = MlflowTracker.start(uri, "vf/numbers", "chain")
    tags = {"vf.stage": "eval", "long": "x" * 9000}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "note.txt").write_text("hello")
    with MlflowTracker.start(
        uri, "vf/numbers", "chain/eval", parent_id=parent.run_id, tags=tags
    ) as tracker:
        tracker.log_params({"eval": {"tokens": 8, "text": "y" * 7000}})
        tracker.log_params({f"p{i}": i for i in range(150)})
        tracker.log_metrics({"pass@4": 0.5, "reward/mean": 0.25, "bad": math.nan}, step=2)
        tracker.log_artifact(tmp_path / "a" / "note.txt", "notes")
        tracker.log_artifact(tmp_path / "a", "all")
        tracker.log_dataset(DatasetRef("/data/x.parquet", "abc", 7), "numbers/eval", "eval")
        tracker.set_tags({"prefect.flow_run_url": "http://x"})
    run = fetch(tracker)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "chain/eval"
    assert run.data.tags["mlflow.parentRunId"] == parent.run_id
    assert len(run.data.tags["long"]) == 5000
    assert run.data.tags["prefect.flow_run_url"] == "http://x"
    assert (run.data.params["eval.tokens"], len(run.data.params["eval.text"])) == ("8", 6000)
    assert len(run.data.params) == 152
    assert (run.data.metrics["pass_at_4"], run.data.metrics["reward/mean"]) == (0.5, 0.25)
    history = tracker._sender.client.get_metric_history(tracker.run_id, "reward/mean")
    assert [point.step for point in history] == [2]
    [entry] = run.inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.digest) == ("numbers/eval", "abc")
    assert [(tag.key, tag.value) for tag in entry.tags] == [("mlflow.data.context", "eval")]
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (folder / "notes" / "note.txt").read_text() == "hello"
    assert (folder / "all" / "note.txt").exists()
    assert not (tmp_path / "mlruns").exists()
    assert not (tmp_path / "mlflow.db").exists()


def test_start_attaches_to_a_run_that_exists(uri: str) -> None:
    first = MlflowTracker.start(uri, "vf/numbers", "stage")
    first.log_params({"lr": 1e-5, "steps": 4})
    first.close("FAILED")
    second = MlflowTracker.start(uri, "vf/numbers", "stage", run_id=first.run_id)
    assert second.run_id == first.run_id
    assert second.experiment_id == first.experiment_id
    assert fetch(second).info.status == "RUNNING"
    second.log_params({"lr": 2e-5, "new": 1})
    second.close()
    second.close("FAILED")
    run = fetch(second)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "1e-05", "steps": "4", "new": "1"}


def test_start_makes_a_run_where_the_store_lost_it(uri: str) -> None:
    tracker = MlflowTracker.start(uri, "vf/numbers", "stage", run_id="0" * 32)
    assert tracker.run_id != "0" * 32
    tracker._sender.client.delete_run(tracker.run_id)
    again = MlflowTracker.start(uri, "vf/numbers", "stage", run_id=tracker.run_id)
    assert again.run_id != tracker.run_id


def test_a_deleted_experiment_comes_back(uri: str) -> None:
    first = MlflowTracker.start(uri, "vf/gone", "stage")
    first._sender.client.delete_experiment(first.experiment_id)
    assert MlflowTracker.start(uri, "vf/gone", "stage").experiment_id == first.experiment_id


def test_url_needs_a_server(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VF_MLFLOW_UI", raising=False)
    assert MlflowTracker.start(uri, "vf/numbers", "a").url == ""
    monkeypatch.setenv("VF_MLFLOW_UI", "http://127.0.0.1:5000/")
    tracker = MlflowTracker.start(uri, "vf/numbers", "b")
    where = f"experiments/{tracker.experiment_id}/runs/{tracker.run_id}"
    assert tracker.url == f"http://127.0.0.1:5000/#/{where}"
    assert MlflowTracker.start(uri, "vf/numbers", "c", ui="http://ui").url.startswith("http://ui/#")


def test_a_store_that_fails_is_told_once_and_spooled(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool.jsonl"
    tracker = MlflowTracker.start(uri, "vf/numbers", "stage", spool=spool)
    calls = []

    def refuse(*args: object, **kwargs: object) -> None:
        calls.append(args)
        raise OSError("database is locked")

    real = tracker._sender.client.log_batch
    monkeypatch.setattr(tracker._sender.client, "log_batch", refuse)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            tracker.log_metrics({"reward/mean": 0.1 * step}, step)
        tracker.log_params({"a": 1})
        tracker.set_tags({"b": "2"})
    # After the first refusal the store is left alone for a while.
    assert len(calls) == 1
    assert [r.name for r in caplog.records] == ["vf_pipeline.tracking.mlflow_tracker"]
    assert "database is locked" in caplog.text
    lines = [json.loads(line) for line in spool.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["metrics"] * 5 + ["params", "tags"]
    monkeypatch.setattr(tracker._sender.client, "log_batch", real)
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    tracker.log_metrics({"reward/mean": 0.9}, 6)
    assert fetch(tracker).data.metrics == {"reward/mean": 0.9}


def test_register_model_moves_the_alias_and_keeps_the_previous(uri: str, tmp_path: Path) -> None:
    tracker = MlflowTracker.start(uri, "vf/numbers", "promote")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "model.safetensors").write_text("weights")
    one, two = (str(folder) for folder in folders)
    run_id = tracker.run_id
    assert register_model(uri, "vf/numbers", one, run_id, "champion", {"digest": "1"}) == "1"
    assert register_model(uri, "vf/numbers", one, run_id, "champion", {"digest": "1"}) == "1"
    assert tracker.register_model("vf/numbers", two, alias="champion", tags={"digest": "2"}) == "2"
    model = tracker._sender.client.get_registered_model("vf-numbers")
    assert {name: str(version) for name, version in model.aliases.items()} == {
        "champion": "2",
        "previous": "1",
    }
    version = tracker._sender.client.get_model_version("vf-numbers", "2")
    assert version.source == folders[1].as_uri()
    assert (version.run_id, version.tags) == (run_id, {"digest": "2"})


@pytest.mark.parametrize("wrong", ["", "./mlruns", "file:///tmp/mlruns", "mlflow.db"])
def test_uris_that_cannot_work_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="sqlite"):
        MlflowTracker.start(wrong, "vf/numbers", "x")


def test_a_server_that_is_down_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    started = time.monotonic()
    with pytest.raises(StorageError, match="cannot start a run"):
        MlflowTracker.start("http://127.0.0.1:9", "vf/numbers", "x")
    assert time.monotonic() - started < 10
