"""The lines of the verdict: over the best prompting first, and what is not fair is said."""

from vf_pipeline.evaluation.gains import Measured, measure_gains
from vf_pipeline.reports.verdict import verdict_lines
from vf_pipeline.runs.outputs import LeftOut
from vf_pipeline.types import Rollout, Score

N = 200


def measured(label: str, right: int, cut: int = 0, unit: float = 1.0) -> Measured:
    """Return a model that is right on the first examples; a limit cut its last answers."""
    pairs = []
    for i in range(N):
        reason = "length" if i >= N - cut else "stop"
        rollout = Rollout(i, 0, f"e{i}", "t", "q", "a", "g", reason)  # type: ignore[arg-type]
        pairs.append((rollout, Score(rollout.key, unit * (i < right))))
    return Measured(label, pairs)


PLAIN = measured("zero-shot, 6 tokens", 0, cut=N)
WARM, TRAINED = measured("SFT", 120), measured("trained", 170)


def test_the_first_line_is_about_the_best_prompted_base() -> None:
    few = measured("8-shot, 64 tokens", 125)
    lines = verdict_lines(measure_gains([PLAIN, few], WARM, TRAINED), True)
    # d̄ = 45 / 200, SE = sqrt(0.225 · 0.775 / 199), t(199) = 1.97196
    assert lines[0] == (
        "PASSED: +22.5 points (95 % CI 16.7 … 28.3) over the best prompted base "
        "(8-shot, 64 tokens: 0.625) on 200 held-out examples"
    )
    assert lines[1].startswith("Over plain base: +85.0 points (95 % CI ")
    assert lines[1].endswith(
        ") on 200 held-out examples (zero-shot, 6 tokens: 0.000; 100 % of answers cut)"
    )
    assert [line.partition(":")[0] for line in lines[2:]] == ["SFT over base", "GRPO over SFT"]


def test_the_plain_base_is_told_once_where_it_is_the_best() -> None:
    plain = measured("zero-shot, 8 tokens", 100)
    few = measured("3-shot, 8 tokens", 90)
    for bases, which in (([plain, few], "best prompted base"), ([plain], "plain base")):
        lines = verdict_lines(measure_gains(bases, WARM, TRAINED), False)
        assert lines[0].startswith("NOT PASSED: +35.0 points")
        assert f"over the {which} (zero-shot, 8 tokens: 0.500) on" in lines[0]
        assert len(lines) == 3


def test_rewards_beyond_one_are_told_plainly() -> None:
    bases = [measured("zero-shot, 8 tokens", 0), measured("3-shot, 8 tokens", 100, unit=4.0)]
    trained = measured("trained", 200, unit=4.0)
    first = verdict_lines(measure_gains(bases, WARM, trained), True)[0]
    assert "+2 reward (95 % CI" in first
    assert "(3-shot, 8 tokens: 2)" in first


def test_what_could_not_be_measured_is_said() -> None:
    left_out = [LeftOut("8-shot, 64 tokens", "8 worked examples are wanted")]
    lines = verdict_lines(measure_gains([PLAIN], WARM, TRAINED), True, left_out)
    assert lines[-1] == "not measured: base, 8-shot, 64 tokens: 8 worked examples are wanted"
