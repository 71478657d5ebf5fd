from pathlib import Path

import pytest

from vf_pipeline.errors import StorageError
from vf_pipeline.runs.manifest import Manifest


def test_what_is_recorded_is_found_again(tmp_path: Path) -> None:
    manifest = Manifest.open(tmp_path)
    assert manifest.stages == {}
    manifest.record("sft", "key-2", {"steps": 4}, started_at=20.0)
    manifest.record("prepare", "key-1", {"rows": 3}, started_at=10.0)
    manifest.note(mlflow_url="http://127.0.0.1:5000")
    again = Manifest.open(tmp_path)
    assert list(again.stages) == ["prepare", "sft"], "in the order in which they ran"
    assert again.done("prepare", "key-1") == {"rows": 3}
    assert again.done("prepare", "another") is None
    assert again.done("grpo", "key-1") is None
    assert again.facts == {"mlflow_url": "http://127.0.0.1:5000"}


@pytest.mark.parametrize(
    ("content", "words"), [("{", "not valid JSON"), ("[]", "schema"), ('{"schema": 9}', "schema")]
)
def test_a_damaged_manifest_is_told(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StorageError, match=words):
        Manifest.open(tmp_path)


@pytest.mark.parametrize("text", ['{"schema": 1}', '{"schema": 1, "stages": {"sft": {"x": 1}}}'])
def test_a_damaged_manifest_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StorageError, match=r"is damaged.*--fresh"):
        Manifest.open(tmp_path)
