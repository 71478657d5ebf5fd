import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_workers
import pytest

from vf_pipeline.configs import GrpoSettings
from vf_pipeline.errors import TrainingError
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.training.transports import rollouts as feed_module
from vf_pipeline.training.transports.messages import PlayOrder
from vf_pipeline.training.transports.rollouts import RolloutFeed


def order(
    tmp_path: Path, stall_timeout_s: float = 20.0, step: int = 0, position: int = 0
) -> PlayOrder:
    spec = TrainSpec(
        kind="grpo",
        model_dir="m",
        model_digest="d",
        output_dir=str(tmp_path / "model"),
        work_dir=str(tmp_path),
        examples_uri="e",
        base_url="http://127.0.0.1:1/v1",
        served_model="m",
        weights_dir=str(tmp_path / "w"),
        grpo=GrpoSettings(steps=4, groups=2, group_size=32, stall_timeout_s=stall_timeout_s),
    )
    return PlayOrder(spec, step, position)


def alive() -> None:
    pass


def failing(feed: RolloutFeed, step: int = 0) -> tuple[str, float]:
    started = time.monotonic()
    try:
        with pytest.raises(TrainingError) as caught:
            feed.take(step)
    finally:
        feed.close()
    return str(caught.value), time.monotonic() - started


def test_steps_come_in_order_from_where_the_job_starts(tmp_path: Path) -> None:
    feed = RolloutFeed(order(tmp_path, step=1, position=6), alive, fake_workers.plays)
    try:
        feed.allow(2, 1)
        first, second = feed.take(1), feed.take(2)
        assert (first.position, second.position) == (8, 10)
        assert [g.position for g in first.groups] == [6, 7]
        assert {g.version for g in second.groups} == {1}
        feed.allow(3, 2)
        assert feed.take(3).groups[0].version == 2
    finally:
        feed.close()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (fake_workers.dies, "died with exit code -9 before the rollouts of step 0"),
        (fake_workers.faults, "unknown environment 'x'"),
    ],
)
def test_a_dead_worker_ends_the_wait(
    target: Callable[..., Any], words: str, tmp_path: Path
) -> None:
    text, took = failing(RolloutFeed(order(tmp_path), alive, target))
    assert words in text
    assert took < 10


def test_a_stall_says_what_is_awaited(tmp_path: Path) -> None:
    feed = RolloutFeed(order(tmp_path, stall_timeout_s=0.6), alive, fake_workers.silent)
    while not feed._in_flight:
        time.sleep(0.02)
    text, _ = failing(feed, step=7)
    assert "s for rollouts of step 7 (worker alive, 12 of 64 in flight)" in text


def test_a_dead_engine_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PROBE_EVERY_S", 0.3)

    def gone() -> None:
        raise TrainingError("the engine at x is gone")

    text, took = failing(RolloutFeed(order(tmp_path), gone, fake_workers.silent))
    assert text == "the engine at x is gone"
    assert took < 10
