"""GRPO's trainer against a worker that makes its rollouts up, and an engine that only listens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_workers
import pytest
import torch
from engine_stub import stub_engine
from safetensors.torch import load_file

from vf_pipeline.configs import GrpoSettings
from vf_pipeline.errors import TrainingError
from vf_pipeline.training.groups import DataState, Group, StepGroups
from vf_pipeline.training.metrics import read_metrics
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.training.trainer import process as child
from vf_pipeline.training.trainer.grpo import GrpoObjective, step_metrics
from vf_pipeline.training.transports import rollouts as feed
from vf_pipeline.types import Failure, ModelRef, Rollout, Score, ScoredRollout, Turn, WeightVersion

SETTINGS = GrpoSettings(steps=4, groups=3, group_size=2, lr=1e-3, save_steps=2, max_tokens=2)


def make_spec(tiny: ModelRef, work: Path, url: str = "http://x/v1", **more: Any) -> TrainSpec:
    return TrainSpec(
        kind="grpo",
        model_dir=tiny.uri,
        model_digest=tiny.digest,
        output_dir=str(work / "model"),
        work_dir=str(work),
        examples_uri="unused",
        base_url=url,
        served_model="tiny",
        weights_dir=str(work / "weights"),
        grpo=SETTINGS.model_copy(update=more),
    )


@pytest.fixture
def made_up_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    init = feed.RolloutFeed.__init__

    def with_fake(self: Any, order: Any, probe: Any, target: Any) -> None:
        init(self, order, probe, fake_workers.plays)

    monkeypatch.setattr(feed.RolloutFeed, "__init__", with_fake)


@pytest.mark.usefixtures("made_up_rollouts")
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_it_trains_syncs_and_resumes_where_it_was(
    tiny: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    with stub_engine() as engine:
        whole = make_spec(tiny, tmp_path / "whole", engine.url, max_staleness=max_staleness)
        result = child.train(whole)
        assert steps_of(engine.loaded) == [0, 1, 2, 3]
        assert {v.digest for v in versions_of(engine.loaded)} == {whole.digest}
        lines = read_metrics(whole.work("metrics.jsonl"))
        check_metrics(lines, max_staleness)
        assert result.steps == 4
        assert not list(Path(whole.weights_dir).iterdir())

        parts = make_spec(tiny, tmp_path / "parts", engine.url, max_staleness=max_staleness)
        stop_after(monkeypatch, 3)
        with pytest.raises(KeyboardInterrupt):
            child.train(parts)
        monkeypatch.undo()
        again_with_fakes(monkeypatch)
        engine.loaded.clear()
        again = child.train(parts)
    assert again.resumed_from == 2
    assert steps_of(engine.loaded) == [2, 3]
    assert [line["step"] for line in read_metrics(parts.work("metrics.jsonl"))] == [1, 2, 3, 4]
    if max_staleness == 0:
        one, two = (load_file(Path(s.output_dir) / "model.safetensors") for s in (whole, parts))
        assert all(torch.equal(one[name], two[name]) for name in one)


def versions_of(bodies: list[dict[str, Any]]) -> list[WeightVersion]:
    return [WeightVersion.parse(body["weight_version"]) for body in bodies]


def steps_of(bodies: list[dict[str, Any]]) -> list[int]:
    return [version.step for version in versions_of(bodies)]


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    end_step = GrpoObjective.end_step

    def dying(self: Any, model: Any, done: int) -> None:
        end_step(self, model, done)
        if done == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(GrpoObjective, "end_step", dying)


def again_with_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    init = feed.RolloutFeed.__init__
    monkeypatch.setattr(
        feed.RolloutFeed,
        "__init__",
        lambda self, order, probe, target: init(self, order, probe, fake_workers.plays),
    )


def check_metrics(lines: list[dict[str, Any]], max_staleness: int) -> None:
    named = (
        "loss reward/mean reward/std frac_zero_std groups tried kl entropy clip_frac grad_norm lr "
        "completion/len_mean completion/truncated_frac rollout/error_frac time/wait time/train "
        "time/sync tokens/total policy_lag"
    )
    assert set(named.split()) <= set(lines[0])
    assert [line["policy_lag"] for line in lines] == [0] + [float(max_staleness)] * 3
    assert [line["tokens/total"] for line in lines] == [12, 24, 36, 48]
    assert all(line["groups"] == 3 and line["reward/mean"] == 0.5 for line in lines)
    assert all(line["grad_norm"] > 0 for line in lines)


class FakeFeed:
    def __init__(self, plays: Callable[[int], StepGroups]) -> None:
        self.plays = plays
        self.allowed: list[tuple[int, int]] = []

    def take(self, step: int) -> StepGroups:
        return self.plays(step)

    def allow(self, step: int, version: int) -> None:
        self.allowed.append((step, version))


class FakeSync:
    def __init__(self) -> None:
        self.pushed: list[int] = []

    def clear(self) -> None:
        pass

    def write(self, model: Any, version: int) -> Path:
        return Path(f"v{version}")

    def load(self, folder: Path, version: int) -> None:
        assert folder == Path(f"v{version}")
        self.pushed.append(version)


def objective(tiny: ModelRef, plays: Callable[[int], StepGroups], **more: Any) -> GrpoObjective:
    spec = make_spec(tiny, Path("unused"), **more)
    return GrpoObjective(spec, FakeFeed(plays), FakeSync(), DataState())  # type: ignore[arg-type]


def test_a_step_may_be_played_max_staleness_versions_ahead(tiny: ModelRef, model: Any) -> None:
    for staleness, wanted in [
        (0, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        (1, [(1, 0), (2, 1), (3, 2), (3, 3)]),
    ]:
        made = objective(tiny, lambda step: StepGroups(step, (), 0), max_staleness=staleness)
        made.begin(model, 0)
        for step in (1, 2, 3, 4):
            made.end_step(model, step)
        assert made.feed.allowed == wanted  # type: ignore[attr-defined]
        assert made.sync.pushed == [0, 1, 2, 3], "the last weights nobody samples with"  # type: ignore[attr-defined]


def test_weights_that_the_engine_has_are_not_sent_again(tiny: ModelRef, model: Any) -> None:
    spec = make_spec(tiny, Path("unused"))
    feed, sync = FakeFeed(lambda step: StepGroups(step, (), 0)), FakeSync()
    made = GrpoObjective(spec, feed, sync, DataState(), served=True)  # type: ignore[arg-type]
    made.begin(model, 0)
    assert sync.pushed == [] and feed.allowed == []
    made.end_step(model, 1)
    made.close()
    assert sync.pushed == [1]


def test_flat_steps_are_skipped_until_there_are_five_in_a_row(tiny: ModelRef) -> None:
    def flat(step: int) -> StepGroups:
        groups = tuple(fake_workers.group(k, step, good=False) for k in range(3))
        return StepGroups(step, groups, 3 * (step + 1))

    made = objective(tiny, flat)
    for step in range(4):
        assert made.samples(step) == []
        assert made.metrics()["skipped"] == 1.0
        assert made.metrics()["frac_zero_std"] == 1.0
    with pytest.raises(TrainingError, match=r"no learning signal.*mean 1\.00"):
        made.samples(4)


def test_a_good_step_ends_the_row_of_empty_ones(tiny: ModelRef) -> None:
    def some(step: int) -> StepGroups:
        return StepGroups(step, (fake_workers.group(0, step, good=step == 3),), step)

    made = objective(tiny, some)
    for step in range(8):
        made.samples(step)
    assert made.data.empty_in_a_row == 4


def test_rollouts_that_all_fail_end_the_training_with_their_cause(tiny: ModelRef) -> None:
    def failed(step: int) -> StepGroups:
        error = Failure("environment", "KeyError", "'answer'")
        broken = Group(0, (play(0, None, error=error), play(1, None, error=error)), 0)
        return StepGroups(step, (broken,), 1)

    with pytest.raises(TrainingError, match=r"all 2 rollouts of step 0 failed: KeyError: 'answer'"):
        objective(tiny, failed).samples(0)


def play(
    index: int, reward: float | None, tokens: int = 0, stop: str = "stop", error: Any = None
) -> ScoredRollout:
    turns = (Turn((1,), (2,) * tokens, (-1.0,) * tokens, stop, "w@1"),) if tokens else ()
    rollout = Rollout(0, index, "d", "t", "p", "c", "a", stop, turns, error=error)  # type: ignore[arg-type]
    return ScoredRollout(rollout, Score(rollout.key, reward))


def test_step_metrics_count_all_that_was_tried() -> None:
    groups = (
        Group(0, (play(0, 1.0, 4), play(1, 0.0, 2, "length")), 1),
        Group(1, (play(0, 1.0, 1), play(1, 1.0, 1)), 1),
        Group(2, (play(0, None, 2), play(1, 1.0, 2)), 1),
    )
    got = step_metrics(StepGroups(2, groups, 3), [groups[0]], stale=0)
    assert got["reward/mean"] == pytest.approx(4 / 5)
    assert got["frac_zero_std"] == pytest.approx(1 / 3)
    assert got["completion/len_mean"] == 2.0
    assert got["completion/truncated_frac"] == pytest.approx(1 / 6)
    assert got["rollout/error_frac"] == pytest.approx(1 / 6)
    assert (got["groups"], got["tried"], got["policy_lag"], got["skipped"]) == (1, 3, 1, 0)


def test_a_skipped_step_leaves_the_weights_alone(
    tiny: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flat(self: Any, step: int) -> StepGroups:
        return StepGroups(step, (fake_workers.group(0, step, good=False),), step)

    again_with_fakes(monkeypatch)
    monkeypatch.setattr(feed.RolloutFeed, "take", flat)
    with stub_engine() as engine:
        spec = make_spec(tiny, tmp_path, engine.url)
        child.train(spec)
    after = load_file(Path(spec.output_dir) / "model.safetensors")
    before = load_file(Path(tiny.uri) / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_worker_and_the_parent_never_import_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, vf_pipeline.training.trainer.process, vf_pipeline.training.worker.process\n"
        "import vf_pipeline.training.transports.rollouts, vf_pipeline.training.launch\n"
        "assert not {'torch', 'transformers', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
