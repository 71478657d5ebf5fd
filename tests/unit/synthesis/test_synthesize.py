"""Synthesis from end to end on a fake client: few-shot in, zero-shot out."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from vf_pipeline.configs import InferenceSettings, SynthSettings
from vf_pipeline.errors import VfError
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.synthesis.synthesize import SynthResult, synthesize
from vf_pipeline.testing import EchoEnvironment, FakeClient
from vf_pipeline.tracking import JsonlTracker

SHOTS = [{"role": "user", "content": "echo x"}, {"role": "assistant", "content": "echo x"}]


def make(folder: Path, client: FakeClient, min_rows: int = 2, **kwargs: Any) -> SynthResult:
    env = EchoEnvironment(num_examples=4, system_prompt="Repeat.")
    settings = SynthSettings(min_rows=min_rows, rollouts_per_example=2, max_concurrent=2)
    return synthesize(
        env,
        env.examples("train"),
        {"echo": SHOTS},
        Endpoint("http://127.0.0.1:1/v1", "fake"),
        settings=settings,
        inference=InferenceSettings(),
        seed=0,
        folder=folder,
        journal_settings={"model": "0123456789abcdef", "seed": 0},
        client=client,
        **kwargs,
    )


def reply(prompt: Any) -> str:
    text = str(prompt[-1]["content"])
    return "wrong" if text == "echo 3" else text


def test_rows_are_zero_shot_though_the_play_was_few_shot(tmp_path: Path) -> None:
    client = FakeClient(reply)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    result = make(tmp_path / "synth", client, tracker=tracker)
    played = client.requests[0]["messages"]
    assert played == [
        {"role": "system", "content": "Repeat."},
        *SHOTS,
        {"role": "user", "content": "echo 0"},
    ]
    rows = pyarrow.parquet.read_table(result.dataset.uri).to_pylist()
    assert json.loads(rows[0]["prompt"]) == [played[0], played[-1]]
    assert [row["completion"] for row in rows] == ["echo 0", "echo 1", "echo 2"]
    assert {row["model"] for row in rows} == {"0123456789abcdef"}
    assert {(row["env"], row["env_version"], row["reward"]) for row in rows} == {("echo", "1", 1.0)}
    digests = {example.digest for example in EchoEnvironment(
        num_examples=4, system_prompt="Repeat.").examples("train")}  # fmt: skip
    assert {row["example_digest"] for row in rows} < digests
    assert list(result.funnel.values()) == [8, 8, 8, 6, 6, 3, 3]
    assert (
        "| kept | among the best of its example | 3 |"
        in (tmp_path / "synth" / "README.md").read_text()
    )
    logged = json.loads(tracker.path.read_text().splitlines()[0])["values"]
    assert (logged["funnel/kept"], logged["reward/mean"]) == (3.0, 0.75)


def test_synthesis_resumes_and_makes_the_same_rows(tmp_path: Path) -> None:
    client = FakeClient(reply)
    first = make(tmp_path, client)
    asked = len(client.requests)
    assert make(tmp_path, client).dataset == first.dataset
    assert len(client.requests) == asked


def test_too_few_rows_are_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(VfError, match="only 3 of 8 samples were accepted"):
        make(tmp_path, FakeClient(reply), min_rows=4)
