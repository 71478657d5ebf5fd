from pathlib import Path

import pytest

from vf_pipeline.training.trainer import checkpoints


def written(work: Path, step: int) -> Path:
    folder = work / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}")
    return folder


def test_none_at_first(tmp_path: Path) -> None:
    assert checkpoints.last_complete(tmp_path / "absent", "d") is None


def test_the_seal_removes_the_older_one(tmp_path: Path) -> None:
    first = written(tmp_path, 2)
    checkpoints.seal(first, "d", 2, {"position": 8})
    second = written(tmp_path, 10)
    assert first.exists()
    checkpoints.seal(second, "d", 10, {"position": 40})
    assert not first.exists()
    found = checkpoints.last_complete(tmp_path, "d")
    assert found == checkpoints.Checkpoint(second, 10, {"position": 40})


def test_an_unsealed_one_is_removed_and_the_older_one_used(tmp_path: Path) -> None:
    good = written(tmp_path, 9)
    checkpoints.seal(good, "d", 9, {})
    torn = written(tmp_path, 10)
    found = checkpoints.last_complete(tmp_path, "d")
    assert found is not None and found.step == 9
    assert not torn.exists()


@pytest.mark.parametrize("damage", ["digest", "state", "json", "step"])
def test_what_is_not_complete_is_removed(tmp_path: Path, damage: str) -> None:
    folder = written(tmp_path, 4)
    checkpoints.seal(folder, "other" if damage == "digest" else "d", 4, {})
    if damage == "state":
        (folder / "trainer_state.json").unlink()
    if damage == "json":
        (folder / checkpoints.SEAL).write_text('{"digest": "d"')
    if damage == "step":
        folder = folder.rename(tmp_path / "checkpoint-5")
    assert checkpoints.last_complete(tmp_path, "d") is None
    assert not folder.exists()


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    written(tmp_path, 1)
    checkpoints.remove_all(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-x", "model"]
