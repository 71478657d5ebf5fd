"""SFT through the real Trainer, on a tiny model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vf_pipeline.configs import SftSettings
from vf_pipeline.errors import StorageError, TrainingError
from vf_pipeline.synthesis.rows import read_rows
from vf_pipeline.training.metrics import read_metrics
from vf_pipeline.training.spec import TrainSpec, read_spec, write_spec
from vf_pipeline.training.trainer import checkpoints, sft
from vf_pipeline.training.trainer import process as child
from vf_pipeline.training.trainer.sft import behind_common_prefix, encode_rows
from vf_pipeline.types import ModelRef, TrainSample

SETTINGS = SftSettings(epochs=2, batch_rows=5, lr=1e-3, save_steps=2)


def make_spec(tiny: ModelRef, rows: Path, work: Path, **more: Any) -> TrainSpec:
    values: dict[str, Any] = {
        "kind": "sft",
        "model_dir": tiny.uri,
        "model_digest": tiny.digest,
        "output_dir": str(work / "model"),
        "work_dir": str(work),
        "rows_uri": str(rows),
        "sft": SETTINGS,
    }
    return TrainSpec.model_validate(values | more)


def test_rows_end_with_the_end_of_turn(tiny: ModelRef, rows_file: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny.uri)
    encoded = encode_rows(tiny.uri, read_rows(str(rows_file)))
    assert len(encoded) == 10
    assert tokenizer.decode(encoded[0].completion_ids) == "17<|im_end|>"
    text = tokenizer.decode(encoded[0].prompt_ids)
    assert text.startswith("<|im_start|>system") and text.endswith("<|im_start|>assistant\n")
    assert read_rows(str(rows_file.parent)) == read_rows(str(rows_file)), "a folder will do"


def encoded(prompt: tuple[int, ...], completion: tuple[int, ...]) -> TrainSample:
    return TrainSample("", prompt, completion)


def test_the_prefix_is_shared_and_only_completions_carry_loss() -> None:
    rows = behind_common_prefix([encoded((1, 2, 3), (9,)), encoded((1, 2, 4, 5), (8, 7))])
    assert [row.prompt_ids for row in rows] == [(1, 2), (1, 2)]
    assert [row.completion_ids for row in rows] == [(3, 9), (4, 5, 8, 7)]
    assert [row.completion_ids[row.skip :] for row in rows] == [(9,), (8, 7)]
    same = behind_common_prefix([encoded((1, 2), (9,)), encoded((1, 2), (8,))])
    assert [(row.prompt_ids, row.completion_ids, row.skip) for row in same] == [
        ((1, 2), (9,), 0),
        ((1, 2), (8,), 0),
    ]
    apart = behind_common_prefix([encoded((1, 2), (9,)), encoded((3,), (8,))])
    assert [(row.prompt_ids, row.completion_ids, row.skip) for row in apart] == [
        ((1,), (2, 9), 1),
        ((3,), (8,), 0),
    ]


def test_bad_rows_are_one_clear_error(tmp_path: Path, tiny: ModelRef) -> None:
    with pytest.raises(StorageError, match=r"nowhere\.parquet"):
        read_rows(str(tmp_path / "nowhere.parquet"))
    with pytest.raises(TrainingError, match="no rows"):
        encode_rows(tiny.uri, [])


def weights(spec: TrainSpec) -> dict[str, torch.Tensor]:
    return load_file(Path(spec.output_dir) / "model.safetensors")


def test_training_lowers_the_loss_and_resumes_bit_for_bit(
    tiny: ModelRef, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_spec(tiny, rows_file, tmp_path / "whole")
    result = child.train(whole)
    assert (result.steps, result.resumed_from) == (4, 0)
    assert result.metrics["loss"] < result.metrics["first/loss"] - 0.3
    assert result.model == ModelRef(whole.output_dir, result.model.digest)
    lines = read_metrics(whole.work("metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {"time", "loss", "grad_norm", "lr", "entropy", "tokens/step"} <= set(lines[0])
    assert not list(whole.work().glob("checkpoint-*"))
    assert (Path(whole.output_dir) / "tokenizer.json").exists()

    parts = make_spec(tiny, rows_file, tmp_path / "parts")
    end_step = sft.SftObjective.end_step

    def die(self: Any, model: Any, step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt
        end_step(self, model, step)

    with monkeypatch.context() as patch:
        patch.setattr(sft.SftObjective, "end_step", die)
        with pytest.raises(KeyboardInterrupt):
            child.train(parts)
    # What a kill in the middle of the next checkpoint would leave behind.
    shutil.copytree(parts.work("checkpoint-2"), parts.work("checkpoint-4"))
    parts.work("checkpoint-4", checkpoints.SEAL).unlink()
    again = child.train(parts)
    assert (again.steps, again.resumed_from) == (4, 2)
    one, two = weights(whole), weights(parts)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert again.model.digest == result.model.digest
    resumed = read_metrics(parts.work("metrics.jsonl"))
    assert [line["step"] for line in resumed] == [1, 2, 3, 4]
    assert [line["loss"] for line in resumed] == [line["loss"] for line in lines]


def test_micro_batches_do_not_change_the_step(
    tiny: ModelRef, rows_file: Path, tmp_path: Path
) -> None:
    losses = []
    for tokens in (64, 2048):
        settings = SftSettings(batch_rows=10, lr=1e-3, micro_tokens=tokens)
        spec = make_spec(tiny, rows_file, tmp_path / str(tokens), sft=settings)
        losses.append(child.train(spec).metrics)
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-6)
    assert losses[0]["grad_norm"] == pytest.approx(losses[1]["grad_norm"], rel=1e-5)


def test_a_finished_training_is_not_repeated(
    tiny: ModelRef, rows_file: Path, tmp_path: Path
) -> None:
    spec = make_spec(tiny, rows_file, tmp_path / "run", sft=SftSettings(batch_rows=10))
    path = write_spec(spec)
    assert child.main([str(path)]) == 0
    stamp = spec.work("result.json").stat().st_mtime_ns
    assert child.main([str(path)]) == 0
    assert spec.work("result.json").stat().st_mtime_ns == stamp
    assert read_spec(path) == spec


def test_a_failure_is_reported_in_a_file(tiny: ModelRef, tmp_path: Path) -> None:
    spec = make_spec(tiny, tmp_path / "absent.parquet", tmp_path / "run")
    assert child.main([str(write_spec(spec))]) == 1
    failure = json.loads(spec.work(child.FAILURE).read_text())
    assert "absent.parquet" in failure["message"]


def test_loss_that_is_not_finite_ends_the_training(
    tiny: ModelRef, rows_file: Path, tmp_path: Path
) -> None:
    # Past what settings allow: the trainer has to notice by itself.
    settings = SftSettings(epochs=3, batch_rows=5, max_grad_norm=1e9).model_copy(
        update={"lr": 1e30}
    )
    spec = make_spec(tiny, rows_file, tmp_path / "run", sft=settings)
    with pytest.raises(TrainingError, match=r"(loss|gradient) of step \d is"):
        child.train(spec)
