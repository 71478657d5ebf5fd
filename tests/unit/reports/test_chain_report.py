"""What the report shows of a chain's measurements."""

from vf_pipeline.evaluation.gains import Measured, measure_gains
from vf_pipeline.reports.chain import measurements, stage_note
from vf_pipeline.runs.outputs import Baseline, Baselines
from vf_pipeline.types import EvalResult, Interval, Rollout, Score, Usage


def measured(label: str, rewards: list[float], cut: int) -> Measured:
    pairs = []
    for i, reward in enumerate(rewards):
        reason = "length" if i < cut else "stop"
        rollout = Rollout(i, 0, f"e{i}", "ab"[i % 2], "q", "a", "g", reason)  # type: ignore[arg-type]
        pairs.append((rollout, Score(rollout.key, reward)))
    return Measured(label, pairs)


def test_every_prompting_is_shown_with_its_tasks_and_its_cut_answers() -> None:
    bases = [measured("zero-shot", [0.0] * 4, 4), measured("3-shot", [0.0, 1.0, 0.0, 1.0], 1)]
    warm, trained = measured("SFT", [1.0, 1.0, 0.0, 1.0], 0), measured("trained", [1.0] * 4, 0)
    shown = measurements(measure_gains(bases, warm, trained))
    assert [(row.label, row.reward.mean, row.truncated) for row in shown] == [
        ("base, zero-shot", 0.0, 1.0),
        ("base, 3-shot", 0.5, 0.25),
        ("SFT", 0.75, 0.0),
        ("trained", 1.0, 0.0),
    ]
    assert {task: row.mean for task, row in shown[1].per_task.items()} == {"a": 0.0, "b": 1.0}


def test_a_stage_of_baselines_is_told_in_one_line() -> None:
    half = Interval(0.5, 0.1, 0.3, 0.7, 8)
    result = EvalResult("e", "m", half, {}, {}, {}, Usage(), 1.0, "")
    made = Baselines((Baseline("3-shot, 8 tokens", 3, 8, result, "journal"),))
    assert stage_note(made) == "3-shot, 8 tokens: 0.500"
    assert stage_note(Baselines()) == ""
