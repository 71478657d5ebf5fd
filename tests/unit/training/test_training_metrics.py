from pathlib import Path

from vf_pipeline.training.metrics import Follower, MetricsFile, read_metrics


def test_lines_are_followed_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "work" / "metrics.jsonl"
    follower = Follower(path)
    assert follower.new_lines() == []
    file = MetricsFile(path)
    file.write(1, {"loss": 3.0})
    file.write(2, {"loss": 2.0})
    assert [(line["step"], line["loss"]) for line in follower.new_lines()] == [(1, 3.0), (2, 2.0)]
    assert follower.new_lines() == []
    # A resumed run forgets the steps after its checkpoint; the follower starts over.
    again = MetricsFile(path)
    again.forget_after(1)
    again.write(2, {"loss": 1.5})
    assert [line["loss"] for line in follower.new_lines()] == [3.0, 1.5]
    assert again.summary() == {"first/loss": 3.0, "loss": 1.5}


def test_a_torn_line_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    assert [line["step"] for line in read_metrics(path)] == [1]
    file = MetricsFile(path)
    file.forget_after(1)
    file.write(2, {"loss": 0.5})
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
