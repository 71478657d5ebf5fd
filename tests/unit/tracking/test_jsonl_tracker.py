"""The trackers that need no store."""

import json
import logging
from pathlib import Path

import pytest

from vf_pipeline.tracking import JsonlTracker, NullTracker, Tracker
from vf_pipeline.tracking.tracker import flatten
from vf_pipeline.types import DatasetRef


def use(tracker: Tracker) -> None:
    with tracker:
        tracker.log_params({"grpo": {"lr": 1e-5}, "seed": 0})
        tracker.log_metrics({"reward/mean": 0.5}, step=3)
        tracker.log_artifact(Path("x.txt"), "folder")
        tracker.log_dataset(DatasetRef("/d", "abc", 7), "env/eval", "eval")
        tracker.set_tags({"vf.stage": "eval"})


def test_jsonl_holds_one_line_a_call(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "run-1.jsonl"
    tracker = JsonlTracker(path)
    use(tracker)
    tracker.close("FAILED")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["params", "metrics", "artifact", "dataset", "tags", "close"]
    assert lines[0]["values"] == {"grpo.lr": 1e-5, "seed": 0}
    assert (lines[1]["step"], lines[1]["values"]) == (3, {"reward/mean": 0.5})
    assert lines[3]["values"] == {"uri": "/d", "digest": "abc", "rows": 7}
    assert lines[5]["status"] == "FINISHED"
    assert tracker.run_id == "run-1"


def test_null_takes_everything() -> None:
    use(NullTracker())
    assert (NullTracker().run_id, NullTracker().url) == ("", "")


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_an_error_becomes_the_status(
    tmp_path: Path, error: type[BaseException], status: str
) -> None:
    with pytest.raises(error), JsonlTracker(tmp_path / "x.jsonl"):
        raise error
    assert json.loads((tmp_path / "x.jsonl").read_text())["status"] == status


def test_a_disk_that_refuses_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    tracker = JsonlTracker(tmp_path / "file" / "x.jsonl")
    with caplog.at_level(logging.WARNING):
        use(tracker)
    assert len(caplog.records) == 1


def test_flatten_keeps_empty_tables() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": None}) == {"a.b.c": 1, "a.d": {}, "e": None}
