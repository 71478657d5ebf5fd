"""When a stage is reused: for the same settings and inputs, and only while its files are there."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tasks.environment_of_run import environment_of, identity_of_environment
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import ConfigError, StorageError
from vf_pipeline.runs import open_run
from vf_pipeline.runs.manifest import Manifest
from vf_pipeline.runs.outputs import Baseline, Baselines, EnvironmentIdentity, Prepared
from vf_pipeline.runs.stages import STAGES, reusable, stage_key
from vf_pipeline.types import EvalResult, Interval, ModelRef, Usage


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("VF_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VF_STATE", str(tmp_path / "state"))
    return PipelineConfig()


def prepared_from(model: str, digest: str, rubric: str = "r") -> dict[str, Any]:
    made = Prepared({}, ModelRef(model, digest), EnvironmentIdentity("1", rubric))
    return asdict(made)


def prepared(config: PipelineConfig, folder: Path) -> Manifest:
    model = folder / "model"
    model.mkdir(parents=True)
    manifest = Manifest.open(folder)
    outputs = prepared_from(str(model), "d")
    manifest.record("prepare", stage_key(config, manifest, "prepare"), outputs, 0.0)
    return Manifest.open(folder)


def test_every_stage_needs_earlier_ones_alone() -> None:
    seen: set[str] = set()
    for name, stage in STAGES.items():
        assert set(stage.needs) <= seen
        seen.add(name)
    assert {part for stage in STAGES.values() for part in stage.settings} <= set(
        PipelineConfig.model_fields
    )


def test_a_stage_is_reused_for_its_settings_alone(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    assert reusable(config, manifest, "prepare") is not None
    assert reusable(config, manifest, "evaluate-base") is None, "it was not done"
    assert reusable(config, manifest, "promote") is None, "its inputs were not done"
    trained_longer = config.model_copy(
        update={"grpo": config.grpo.model_copy(update={"steps": 99})}
    )
    other_seed = config.model_copy(update={"seed": 1})
    assert reusable(trained_longer, manifest, "prepare") is not None
    assert reusable(other_seed, manifest, "prepare") is None


def test_a_stage_whose_files_are_gone_is_done_again(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    (tmp_path / "run" / "model").rmdir()
    assert reusable(config, manifest, "prepare") is None


def test_files_in_lists_are_looked_for_as_well(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    journal = tmp_path / "run" / "rollouts.jsonl"
    journal.write_text("")
    result = EvalResult("e", "m", Interval(0.5, 0.1, 0.3, 0.7, 8), {}, {}, {}, Usage(), 1.0, "")
    made = Baselines((Baseline("3-shot", 3, 8, result, str(journal)),))
    key = stage_key(config, manifest, "evaluate-prompted")
    manifest.record("evaluate-prompted", key, asdict(made), 0.0)
    manifest = Manifest.open(tmp_path / "run")  # as JSON keeps it
    assert reusable(config, manifest, "evaluate-prompted") == made
    journal.unlink()
    assert reusable(config, manifest, "evaluate-prompted") is None


def test_other_inputs_are_another_key(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    before = stage_key(config, manifest, "evaluate-base")
    other = prepared_from("x", "another")
    manifest.record("prepare", "key", other, 0.0)
    assert stage_key(config, manifest, "evaluate-base") != before


def test_fresh_throws_away_all_but_the_lock(config: PipelineConfig) -> None:
    with open_run(config) as run:
        run.path("evaluate-base").mkdir()
        run.path("evaluate-base", "rollouts.jsonl").write_text("old")
        run.manifest.note(published=True)
    with open_run(config, fresh=True) as run:
        left = {path.name for path in run.folder.iterdir()}
        assert left == {"lock", "stage.lock", "config.json"}
        assert run.manifest.facts == {}


def test_an_environment_that_changed_is_refused(config: PipelineConfig) -> None:
    with open_run(config) as run:
        env = environment_of(run)
        now = identity_of_environment(env)
        made = Prepared({}, ModelRef("m", "d"), now)
        run.manifest.record("prepare", "key", asdict(made), 0.0)
        environment_of(run)
        made = replace(made, environment=replace(now, rubric="other"))
        run.manifest.record("prepare", "key", asdict(made), 0.0)
        with pytest.raises(ConfigError, match="has changed since this run was prepared"):
            environment_of(run)


def test_what_another_version_left_is_refused(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    key = stage_key(config, manifest, "prepare")
    manifest.record("prepare", key, {"model": {"uri": str(tmp_path), "digest": "d"}}, 0.0)
    with pytest.raises(StorageError, match=r"the stage prepare has left .*data.*--fresh"):
        reusable(config, manifest, "prepare")
