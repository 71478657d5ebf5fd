from pathlib import Path

import pytest

from vf_pipeline.configs import GrpoSettings, SftSettings
from vf_pipeline.errors import ConfigError
from vf_pipeline.training.spec import (
    TrainResult,
    TrainSpec,
    finished_result,
    read_spec,
    write_result,
    write_spec,
)
from vf_pipeline.types import ModelRef


def sft_spec(tmp_path: Path, **more: object) -> TrainSpec:
    values = {
        "kind": "sft",
        "model_dir": "m",
        "model_digest": "0123",
        "output_dir": str(tmp_path / "model"),
        "work_dir": str(tmp_path / "work"),
        "rows_uri": "rows.parquet",
    }
    return TrainSpec.model_validate(values | more)


def test_a_spec_travels_as_json(tmp_path: Path) -> None:
    spec = sft_spec(tmp_path, sft=SftSettings(lr=1e-4), seed=5)
    assert read_spec(write_spec(spec)) == spec


def test_the_digest_is_of_what_the_outcome_depends_on(tmp_path: Path) -> None:
    spec = sft_spec(tmp_path)
    same = spec.model_copy(update={"threads": 4, "tracking_run_id": "r", "work_dir": "w"})
    assert same.digest == spec.digest
    assert sft_spec(tmp_path, grpo=GrpoSettings(lr=1.0)).digest == spec.digest
    assert sft_spec(tmp_path, sft=SftSettings(lr=1.0)).digest != spec.digest
    assert sft_spec(tmp_path, seed=1).digest != spec.digest
    assert sft_spec(tmp_path, rows_digest="r").digest != spec.digest


def test_an_incomplete_spec_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(
        '{"kind": "grpo", "model_dir": "m", "model_digest": "", "output_dir": "", "work_dir": ""}'
    )
    with pytest.raises(ConfigError, match="needs examples_uri"):
        read_spec(path)


def test_a_result_counts_for_the_same_spec_while_its_model_is_there(tmp_path: Path) -> None:
    spec = sft_spec(tmp_path)
    assert finished_result(spec) is None
    result = TrainResult(ModelRef(spec.output_dir, "d"), 3, {"loss": 1.0}, 2.0, 0)
    write_result(spec, result)
    assert finished_result(spec) is None
    Path(spec.output_dir).mkdir()
    assert finished_result(spec) == result
    assert finished_result(sft_spec(tmp_path, seed=1)) is None
