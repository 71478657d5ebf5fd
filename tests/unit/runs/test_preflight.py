"""What is missing is said before anything starts."""

import importlib.util
from pathlib import Path

import pytest

from flows.command import main
from infra.local import prefect_server
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import PrerequisiteError, StorageError
from vf_pipeline.runs import preflight


def test_a_missing_extra_names_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mlflow" else real(name)
    )
    assert main(["plan", "configs/quickstart.toml"]) == 4
    _, err = capsys.readouterr()
    assert (
        err
        == "error: mlflow is not installed (make setup, or pip install 'vf-pipeline[pipeline]')\n"
    )


def test_a_small_disk_is_told_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight.storage, "free_bytes", lambda path: 10**9)
    with pytest.raises(StorageError, match=r"about 5\.9 GB more of disk.* has 1\.0 GB"):
        preflight.check_run(PipelineConfig(), tmp_path / "run")


def test_pools_need_a_server_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "is_up", lambda api: False)
    with pytest.raises(PrerequisiteError, match="make up"):
        prefect_server.check_server()
