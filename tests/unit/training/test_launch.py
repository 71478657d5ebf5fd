"""The parent's side, with the real child once, and with scripts in its place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vf_pipeline.configs import SftSettings
from vf_pipeline.errors import StorageError, TrainingError
from vf_pipeline.training import launch
from vf_pipeline.training.launch import run_training
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.types import ModelRef


def make_spec(tiny: ModelRef, rows: Path, work: Path) -> TrainSpec:
    return TrainSpec(
        kind="sft",
        model_dir=tiny.uri,
        model_digest=tiny.digest,
        output_dir=str(work / "model"),
        work_dir=str(work),
        rows_uri=str(rows),
        sft=SftSettings(batch_rows=5, save_steps=1),
    )


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that puts a shell script in the child's place."""

    def put(script: str) -> None:
        path = tmp_path / "child.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=str(path)))

    return put


@pytest.mark.slow
def test_it_trains_and_returns_the_result_at_once_the_next_time(
    tiny: ModelRef,
    rows_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_spec(tiny, rows_file, tmp_path / "sft")
    result = run_training(spec, run_dir=tmp_path, timeout_s=120.0)
    assert result.model.uri == str(tmp_path / "sft" / "model")
    assert (result.steps, result.resumed_from) == (2, 0)
    assert "SFT: 2/2" in capsys.readouterr().err
    assert not (tmp_path / "processes.json").exists()
    assert not list((tmp_path / "sft").glob("checkpoint-*"))
    monkeypatch.setattr(launch, "ManagedProcess", None)
    assert run_training(spec, run_dir=tmp_path, timeout_s=120.0) == result


def test_a_child_that_dies_is_an_error_with_its_last_lines(
    tiny: ModelRef, rows_file: Path, tmp_path: Path, child: Any
) -> None:
    child("echo out of luck >&2; exit 7")
    with pytest.raises(TrainingError, match=r"(?s)exit code 7.*out of luck"):
        run_training(make_spec(tiny, rows_file, tmp_path), run_dir=tmp_path, timeout_s=30.0)


def test_a_child_that_explains_itself_is_quoted(
    tiny: ModelRef, rows_file: Path, tmp_path: Path, child: Any
) -> None:
    failure = tmp_path / "failure.json"
    child(
        f"""echo '{{"message": "no learning signal", "hint": "other data"}}' > {failure}; exit 1"""
    )
    with pytest.raises(TrainingError) as caught:
        run_training(make_spec(tiny, rows_file, tmp_path), run_dir=tmp_path, timeout_s=30.0)
    assert (caught.value.message, caught.value.hint) == ("no learning signal", "other data")


def test_it_does_not_wait_forever(
    tiny: ModelRef, rows_file: Path, tmp_path: Path, child: Any
) -> None:
    child("sleep 60")
    with pytest.raises(TrainingError, match=r"took longer than 1 s \(at step 0 of 2\)"):
        run_training(make_spec(tiny, rows_file, tmp_path), run_dir=tmp_path, timeout_s=1.0)


def test_missing_rows_are_told_before_anything_starts(tiny: ModelRef, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"absent\.parquet"):
        run_training(
            make_spec(tiny, tmp_path / "absent.parquet", tmp_path), run_dir=tmp_path, timeout_s=1.0
        )
