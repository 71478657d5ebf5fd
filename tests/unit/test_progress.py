import pytest

from vf_pipeline import progress
from vf_pipeline.progress import Progress, progress_bar


def test_a_line_tells_done_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = Progress("evaluate", total=40, done=10)
    assert bar.line() == "evaluate: 10/40 · starting"
    now[0] = 105.0
    bar.advance(10, "reward 0.5")
    assert bar.line() == "evaluate: 20/40 · 2.0/s · 10 s left · reward 0.5"


def test_slow_units_tell_seconds_each(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = Progress("GRPO", total=10)
    now[0] = 8.0
    bar.advance(2)
    assert bar.line() == "GRPO: 2/10 · 4.0 s each · 32 s left"


def test_elsewhere_than_on_a_terminal_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bar("play", total=3) as bar:
        for _ in range(3):
            bar.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(" · ")[0] for line in err.splitlines()] == ["play: 1/3", "play: 3/3"]
