"""A stage on a pool tells its chain what it made, or why it failed."""

from pathlib import Path

import pytest

from flows.handover import (
    error_handed_over,
    handover_path,
    read_error,
    read_outputs,
    write_outputs,
)
from vf_pipeline import errors, storage
from vf_pipeline.errors import (
    ConfigError,
    PrerequisiteError,
    ProcessError,
    UnknownNameError,
    VfError,
)


def fail(folder: Path, error: Exception, flow_run: str = "try-1") -> None:
    with pytest.raises(type(error)), error_handed_over(folder, "sft", flow_run):
        raise error


def test_outputs_come_back_under_their_key(tmp_path: Path) -> None:
    write_outputs(tmp_path, "sft", "k1", {"steps": 4})
    assert read_outputs(tmp_path, "sft", "k1") == {"steps": 4}
    with pytest.raises(ProcessError, match="other inputs"):
        read_outputs(tmp_path, "sft", "k2")
    assert read_error(tmp_path, "sft", "try-1") is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PrerequisiteError("no bwrap", "apt install bubblewrap"), 4),
        (ConfigError("lr is negative"), 2),
        (UnknownNameError("environment", "nope", ["tiny"]), 2),
        (errors.TrainingError("the loss is nan", "lower the lr"), 1),
        (errors.GateError("no better"), 3),
    ],
)
def test_an_error_keeps_its_class_and_its_words(tmp_path: Path, error: VfError, code: int) -> None:
    fail(tmp_path, error)
    read = read_error(tmp_path, "sft", "try-1")
    assert type(read) is type(error)
    assert (str(read), read.message, read.hint) == (str(error), error.message, error.hint)
    assert read.exit_code == code
    with pytest.raises(VfError):
        raise read


def test_what_another_try_has_left_is_not_read(tmp_path: Path) -> None:
    fail(tmp_path, ConfigError("old"))
    assert read_error(tmp_path, "sft", "try-2") is None
    assert read_error(tmp_path, "grpo", "try-1") is None
    with pytest.raises(ProcessError):
        read_outputs(tmp_path, "sft", "k1")


@pytest.mark.parametrize("kind", ["NoSuchError", "Path", "annotations", "Iterable"])
def test_a_class_outside_the_tree_is_a_process_error(tmp_path: Path, kind: str) -> None:
    words = {"kind": kind, "message": "it broke", "hint": ""}
    storage.write_json(handover_path(tmp_path, "sft"), {"flow_run": "try-1", "error": words})
    read = read_error(tmp_path, "sft", "try-1")
    assert type(read) is ProcessError
    assert str(read) == "it broke"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"flow_run": "try-1"}', '{"flow_run": "try-1", "error": 1}']
)
def test_a_damaged_file_says_nothing(tmp_path: Path, text: str) -> None:
    storage.write_text(handover_path(tmp_path, "sft"), text)
    assert read_error(tmp_path, "sft", "try-1") is None


def test_other_errors_and_folders_that_are_not_there_leave_no_file(tmp_path: Path) -> None:
    fail(tmp_path, ValueError("a bug"))
    fail(tmp_path / "gone", ConfigError("no run"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "stages").write_text("no folder")
    fail(tmp_path, ConfigError("the cause"))
