"""What MLflow misses is sent when it is back: everything, in order, with its times, once."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vf_pipeline.tracking import MlflowTracker, mlflow_tracker
from vf_pipeline.tracking.records import Record, metrics_record, params_record, tags_record
from vf_pipeline.tracking.sender import Sender
from vf_pipeline.tracking.spool import Spool
from vf_pipeline.types import DatasetRef

pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Line:
    """A client whose line to the store can be cut: every call fails then."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.down = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.down:
                raise ConnectionError("nobody answers")
            return getattr(self.client, name)(*args, **kwargs)

        return call


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = mlflow_tracker._ON_THE_WAY._replace(rest_s=0.0)
    monkeypatch.setattr(mlflow_tracker, "_ON_THE_WAY", at_once)


@pytest.fixture
def spools(uri: str) -> Iterator[Path]:
    """Return the folder of the store's spools, which each test leaves empty."""
    folder = Path(uri.removeprefix("sqlite:///")).parent / "spool"
    yield folder
    for path in folder.glob("*.jsonl"):
        path.unlink()


def start(uri: str, **more: Any) -> tuple[MlflowTracker, Line]:
    tracker = MlflowTracker.start(uri, "vf/spool", "run", **more)
    line = Line(tracker._sender.client)
    tracker._sender.client = line  # type: ignore[assignment]
    return tracker, line


def steps(tracker: MlflowTracker, key: str = "loss") -> list[int]:
    history = tracker._sender.client.get_metric_history(tracker.run_id, key)
    return sorted(point.step for point in history)


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_what_was_missed_comes_before_what_is_next(
    uri: str, spools: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, line = start(uri)
    spool = spools / f"{tracker.run_id}.jsonl"
    note = tmp_path / "note.txt"
    note.write_text("hello")
    gone = tmp_path / "gone.txt"
    line.down = True
    before = int(time.time() * 1000)
    with caplog.at_level(logging.WARNING):
        tracker.log_params({"lr": 1e-5})
        tracker.log_params({"lr": 2e-5, "seed": 0})
        for step in (1, 2, 3):
            tracker.log_metrics({"loss": 1.0 / step, "pass@4": 0.5}, step)
        tracker.log_artifact(note, "notes")
        tracker.log_artifact(gone)
        tracker.log_dataset(DatasetRef("/d/x", "abc", 7), "numbers", "eval")
        tracker.set_tags({"stage": "eval"})
    after = int(time.time() * 1000)
    assert len([r for r in caplog.records if "refuses" in r.message]) == 1
    assert kinds(spool) == ["params"] * 2 + ["metrics"] * 3 + ["artifact"] * 2 + ["dataset", "tags"]
    time.sleep(0.05)

    line.down = False
    line.calls.clear()
    tracker.log_metrics({"loss": 0.25}, 4)
    # The three lines of metrics went in one call.
    assert line.calls.count("log_batch") == 2 + 1 + 1 + 1
    assert not spool.exists()
    run = line.get_run(tracker.run_id)
    assert run.data.params == {"lr": "1e-05", "seed": "0"}
    assert run.data.tags["stage"] == "eval"
    assert [entry.dataset.digest for entry in run.inputs.dataset_inputs] == ["abc"]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "notes" / "note.txt").read_text() == "hello"
    history = line.get_metric_history(tracker.run_id, "loss")
    assert [(p.step, round(p.value, 4)) for p in history] == [
        (1, 1.0),
        (2, 0.5),
        (3, 0.3333),
        (4, 0.25),
    ]
    assert all(before <= p.timestamp <= after for p in history[:3])
    assert history[3].timestamp > after
    assert line.get_metric_history(tracker.run_id, "pass_at_4")[0].value == 0.5


def test_closing_sends_the_rest(uri: str, spools: Path) -> None:
    tracker, line = start(uri)
    line.down = True
    tracker.log_metrics({"loss": 1.0}, 1)
    line.down = False
    tracker.close("FAILED")
    assert steps(tracker) == [1]
    assert line.get_run(tracker.run_id).info.status == "FAILED"
    assert list(spools.glob("*.jsonl")) == []


def test_the_next_start_sends_what_others_left(uri: str, spools: Path) -> None:
    left, line = start(uri)
    line.down = True
    left.log_metrics({"loss": 1.0}, 1)
    left.close("KILLED")
    closed = json.loads((spools / f"{left.run_id}.jsonl").read_text().splitlines()[1])
    foreign = spools / f"{'f' * 32}.jsonl"
    foreign.write_text('{"time": 1.0, "kind": "tags", "values": {"a": "b"}}\n')
    deleted, line = start(uri)
    line.down = True
    deleted.set_tags({"a": "b"})
    line.client.delete_run(deleted.run_id)

    other, line = start(uri)
    run = line.get_run(left.run_id)
    assert (run.info.status, run.data.metrics) == ("KILLED", {"loss": 1.0})
    assert run.info.end_time == round(closed["time"] * 1000)
    # Runs that this store does not have, or no longer shows, keep their spools.
    names = {path.stem for path in spools.glob("*.jsonl")}
    assert names == {"f" * 32, deleted.run_id}
    other.close()


def test_a_run_that_goes_on_is_not_ended_by_its_past(uri: str, spools: Path) -> None:
    first, line = start(uri)
    line.down = True
    first.log_metrics({"loss": 1.0}, 1)
    first.close("FAILED")
    second, line = start(uri, run_id=first.run_id)
    assert line.get_run(first.run_id).info.status == "RUNNING"
    assert steps(second) == [1]
    second.close()


def test_damaged_lines_are_passed_over(uri: str, spools: Path) -> None:
    tracker, line = start(uri)
    spool = spools / f"{tracker.run_id}.jsonl"
    spools.mkdir(exist_ok=True)
    whole = json.dumps(metrics_record({"loss": 1.0}, 1))
    no_step = '{"time": 1.0, "kind": "metrics", "values": {}}'
    spool.write_text(f'{whole}\nnot json\n[1]\n{no_step}\n{{"kind": "x"}}\n{whole[:20]}')
    line.down = True
    tracker.log_metrics({"loss": 0.5}, 2)
    # A line that a kill has torn does not swallow the next one.
    assert spool.read_text().splitlines()[5] == whole[:20]
    line.down = False
    tracker.flush()
    assert steps(tracker) == [1, 2]
    assert not spool.exists()


def test_a_kill_after_sending_doubles_nothing(
    uri: str, spools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, line = start(uri)
    line.down = True
    for step in (1, 2):
        tracker.log_metrics({"loss": 0.5}, step)
    tracker.log_dataset(DatasetRef("/d/x", "abc", 7), "numbers", "eval")
    tracker.set_tags({"a": "b"})
    line.down = False
    with monkeypatch.context() as patch:

        def killed(self: Spool, size: int) -> None:
            raise KeyboardInterrupt

        patch.setattr(Spool, "_drop", killed)
        with pytest.raises(KeyboardInterrupt):
            tracker.flush()
    assert steps(tracker) == [1, 2]
    tracker.flush()
    assert steps(tracker) == [1, 2]
    assert line.get_run(tracker.run_id).data.tags["a"] == "b"


def test_it_takes_no_longer_than_it_may(uri: str, spools: Path) -> None:
    tracker, line = start(uri)
    line.down = True
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.set_tags({"a": "b"})
    tracker.log_metrics({"loss": 0.5}, 2)
    line.down = False
    spool = Spool(spools / f"{tracker.run_id}.jsonl")
    left = []
    while not spool.replay(tracker._sender, seconds=0.0):
        left.append(kinds(spool.path))
    assert left == [["tags", "metrics"], ["metrics"]]
    assert steps(tracker) == [1, 2]


def test_what_is_refused_for_good_holds_nothing_up(uri: str, spools: Path) -> None:
    tracker, line = start(uri)
    tracker.log_params({"lr": 1})
    spool = Spool(spools / f"{tracker.run_id}.jsonl")
    spool.append(params_record({"lr": 2, "seed": 0, "steps": 3}))
    spool.append(metrics_record({"x" * 300: 1.0, "loss": 0.5}, 1, once_by="loss"))
    spool.append(metrics_record({"loss": 0.25}, 2))
    spool.append(tags_record({"a": "b"}))
    assert spool.replay(tracker._sender, seconds=10.0)
    run = line.get_run(tracker.run_id)
    assert run.data.params == {"lr": "1", "seed": "0", "steps": "3"}
    assert steps(tracker) == [1, 2]
    assert run.data.tags["a"] == "b"


def test_a_sender_at_work_is_not_disturbed(uri: str, spools: Path) -> None:
    import filelock

    tracker, line = start(uri)
    line.down = True
    tracker.log_metrics({"loss": 1.0}, 1)
    line.down = False
    with filelock.FileLock(spools / ".send.lock"):
        tracker.log_metrics({"loss": 0.5}, 2)
        assert kinds(spools / f"{tracker.run_id}.jsonl") == ["metrics", "metrics"]
    tracker.log_metrics({"loss": 0.25}, 3)
    assert steps(tracker) == [1, 2, 3]


def test_a_child_shares_the_spool_of_its_parent(uri: str, spools: Path) -> None:
    parent, _ = start(uri)
    child = MlflowTracker.attach(uri, parent.run_id)
    line = Line(child._sender.client)
    child._sender.client = line  # type: ignore[assignment]
    line.down = True
    child.flush()
    child.log_step(1, {"loss": 1.0}, once_by="loss")
    child.flush()
    assert kinds(spools / f"{parent.run_id}.jsonl") == ["metrics"]
    parent.close()
    assert steps(parent) == [1]


def test_a_child_needs_no_store_to_start(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("VF_STATE", str(Path(uri.removeprefix("sqlite:///")).parent))
    parent, _ = start(uri)
    child = MlflowTracker.attach("http://127.0.0.1:9", parent.run_id)
    child.flush()
    child.log_step(1, {"loss": 1.0}, once_by="loss")
    parent.close()
    assert steps(parent) == [1]


def test_repeated_steps_appear_once(uri: str, spools: Path) -> None:
    """Killed at step 4, again from the checkpoint of step 2."""
    parent, _ = start(uri)
    killed = MlflowTracker.attach(uri, parent.run_id)
    for step in (1, 2, 3, 4):
        killed.log_step(step, {"loss": 1.0 / step, "reward/mean": 0.1 * step}, once_by="loss")
    again = MlflowTracker.attach(uri, parent.run_id)
    for step in (3, 4, 5):
        again.log_step(step, {"loss": 2.0 / step, "reward/mean": 0.2 * step}, once_by="loss")
    assert steps(parent) == steps(parent, "reward/mean") == [1, 2, 3, 4, 5]
    values = [p.value for p in parent._sender.client.get_metric_history(parent.run_id, "loss")]
    assert values == [1.0, 0.5, 1 / 3, 0.25, 0.4]


def test_steps_repeated_while_the_store_is_down_appear_once(uri: str, spools: Path) -> None:
    parent, line = start(uri)
    line.down = True
    for step in (1, 2, 3, 4, 3, 4, 5):
        parent.log_step(step, {"loss": 1.0 / step}, once_by="loss")
    line.down = False
    parent.close()
    assert steps(parent) == [1, 2, 3, 4, 5]


def test_a_kind_of_the_future_is_damage(tmp_path: Path, uri: str) -> None:
    tracker, line = start(uri)
    spool = Spool(tmp_path / "x.jsonl")
    future: Record = {"time": 1.0, "kind": "trace", "values": {}}
    spool.append(future)
    assert spool.replay(Sender(lambda: line.client, tracker.run_id), seconds=1.0)


def test_metrics_without_numbers_hold_nothing_up(uri: str, spools: Path) -> None:
    tracker, line = start(uri)
    line.down = True
    tracker.log_metrics({})
    tracker.log_metrics({"name": "text"}, 1)  # type: ignore[dict-item]
    tracker.log_params({"lr": 1.0})
    tracker.log_metrics({"loss": 2.0}, 1)
    line.down = False
    tracker.close()
    run = line.get_run(tracker.run_id)
    assert run.data.params == {"lr": "1.0"}
    assert run.info.status == "FINISHED"
    assert steps(tracker) == [1]
    assert list(spools.glob("*.jsonl")) == []


def test_a_record_that_cannot_be_sent_is_left_out(uri: str, spools: Path) -> None:
    left, line = start(uri)
    line.down = True
    left.log_metrics({"loss": 1.0}, 1)
    path = next(spools.glob("*.jsonl"))
    bad = '{"kind":"metrics","time":1.0,"step":"x","values":{"a":1}}'
    path.write_text(f"{bad}\n{path.read_text()}")
    line.down = False
    left.close()
    assert steps(left) == [1]
    assert line.get_run(left.run_id).info.status == "FINISHED"


def test_numbers_of_numeric_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    record = metrics_record({"a": numpy.float32(0.5), "b": numpy.int64(3), "c": "x"}, 1)  # type: ignore[dict-item]
    assert record["values"] == {"a": 0.5, "b": 3.0}
