"""When a stage is reused: for the same settings and inputs, and only while its files are there."""

from pathlib import Path

import pytest

from tasks.environment_of_run import environment_of
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import ConfigError
from vf_pipeline.runs import open_run
from vf_pipeline.runs.manifest import Manifest
from vf_pipeline.runs.stages import STAGES, reusable, stage_key


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("VF_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VF_STATE", str(tmp_path / "state"))
    return PipelineConfig()


def prepared(config: PipelineConfig, folder: Path) -> Manifest:
    model = folder / "model"
    model.mkdir(parents=True)
    manifest = Manifest.open(folder)
    outputs = {"model": {"uri": str(model), "digest": "d"}, "data": {}}
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
    outputs = {"baselines": [{"label": "3-shot", "rollouts": str(journal)}], "left_out": []}
    key = stage_key(config, manifest, "evaluate-prompted")
    manifest.record("evaluate-prompted", key, outputs, 0.0)
    assert reusable(config, manifest, "evaluate-prompted") == outputs
    journal.unlink()
    assert reusable(config, manifest, "evaluate-prompted") is None


def test_other_inputs_are_another_key(config: PipelineConfig, tmp_path: Path) -> None:
    manifest = prepared(config, tmp_path / "run")
    before = stage_key(config, manifest, "evaluate-base")
    other = {"model": {"uri": "x", "digest": "another"}, "data": {}}
    manifest.record("prepare", "key", other, 0.0)
    assert stage_key(config, manifest, "evaluate-base") != before


def test_fresh_throws_away_all_but_the_lock(config: PipelineConfig) -> None:
    with open_run(config) as run:
        run.path("evaluate-base").mkdir()
        run.path("evaluate-base", "rollouts.jsonl").write_text("old")
        run.manifest.note(published=True)
    with open_run(config, fresh=True) as run:
        left = {path.name for path in run.folder.iterdir()}
        assert left == {"lock", "config.json"}
        assert run.manifest.facts == {}


def test_an_environment_that_changed_is_refused(config: PipelineConfig) -> None:
    with open_run(config) as run:
        env = environment_of(run)
        now = {"version": env.version, "rubric": env.rubric.digest()}
        run.manifest.record("prepare", "key", {"environment": now}, 0.0)
        environment_of(run)
        run.manifest.record("prepare", "key", {"environment": now | {"rubric": "other"}}, 0.0)
        with pytest.raises(ConfigError, match="has changed since this run was prepared"):
            environment_of(run)
