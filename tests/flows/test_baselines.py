"""The stage that prompts the base model: what an environment has no place for is left out."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tasks.environment_of_run import environment_of
from tasks.evaluate_baselines import evaluate_baselines
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.data.files import write_examples
from vf_pipeline.runs import Run, open_run


def prepared(run: Run) -> Run:
    """Write the parts of the data: eight held-out examples, two of each task to take shots from."""
    examples = environment_of(run).examples("train", 16)
    parts = {"eval": examples[:8], "synth": examples[8:]}
    data = {
        name: asdict(write_examples(run.path("prepare", f"{name}.parquet"), part))
        for name, part in parts.items()
    }
    env = environment_of(run)
    environment = {"version": env.version, "rubric": env.rubric.digest()}
    outputs = {"data": data, "model": {"uri": "", "digest": ""}, "environment": environment}
    run.manifest.record("prepare", "key", outputs, 0.0)
    return run


def test_too_few_worked_examples_leave_a_baseline_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VF_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VF_STATE", str(tmp_path / "state"))
    config = PipelineConfig.model_validate({"eval": {"baselines": [{"shots": 3}, {"shots": 0}]}})
    no_engine: Any = None
    with open_run(config) as run:
        made = evaluate_baselines.fn(prepared(run), no_engine)
    assert made.baselines == (), "zero-shot with the plain budget is the plain base"
    assert made.left_out[0].label == "3-shot, 8 tokens"
    assert "3 worked examples of task" in made.left_out[0].reason
