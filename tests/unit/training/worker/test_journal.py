"""Where the worker writes what it played: a journal like any other."""

from pathlib import Path
from typing import Any

from vf_pipeline.configs import GrpoSettings
from vf_pipeline.rollouts.journal import read_journal
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.training.worker.process import open_journal
from vf_pipeline.types import Rollout, Score


def spec(work: Path, **grpo: Any) -> TrainSpec:
    return TrainSpec(
        kind="grpo",
        model_dir="m",
        model_digest="d",
        output_dir=str(work / "model"),
        work_dir=str(work),
        examples_uri="e",
        base_url="http://127.0.0.1:1/v1",
        served_model="m",
        weights_dir=str(work / "w"),
        grpo=GrpoSettings(**grpo),
    )


def write(one: TrainSpec, index: int, reward: float) -> None:
    play = Rollout(0, index, "d0", "t", "p", "c", "a", "stop")
    with open_journal(one) as journal:
        journal.append(play, Score(play.key, reward))


def test_a_resumed_training_goes_on_in_its_journal_and_the_later_play_wins(tmp_path: Path) -> None:
    one = spec(tmp_path)
    write(one, 0, 0.0)
    write(one, 1, 0.5)
    write(one, 0, 1.0)
    played = read_journal(one.work("rollouts.jsonl"))
    assert [(p.rollout.index, p.reward) for p in played] == [(0, 1.0), (1, 0.5)]


def test_another_training_starts_over(tmp_path: Path) -> None:
    write(spec(tmp_path), 0, 0.0)
    other = spec(tmp_path, lr=1e-3)
    write(other, 1, 1.0)
    assert [p.rollout.index for p in read_journal(other.work("rollouts.jsonl"))] == [1]


def test_what_is_no_journal_is_moved_aside(tmp_path: Path) -> None:
    one = spec(tmp_path)
    one.work("rollouts.jsonl").write_text('{"step": 0}\n')
    write(one, 0, 1.0)
    assert len(read_journal(one.work("rollouts.jsonl"))) == 1
    assert one.work("rollouts.jsonl.damaged").read_text() == '{"step": 0}\n'
