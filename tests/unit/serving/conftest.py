"""A tiny model, an engine over it, and a server process."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vf_pipeline.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vf_pipeline.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("other") / "model"
    make_tiny_model(folder, seed=1)
    return folder


@pytest.fixture(scope="session")
def plain_model(tiny_dir: Path) -> Any:
    """The tiny model as transformers runs it: the oracle."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(tiny_dir: Path) -> Any:
    from vf_pipeline.tokens.tokenizer import ChatTokenizer

    return ChatTokenizer.load(tiny_dir)


@pytest.fixture
def make_engine(tiny_dir: Path, tokenizer: Any) -> Iterator[Any]:
    from vf_pipeline.serving.engine.requests import EngineLimits
    from vf_pipeline.serving.engine.scheduler import Engine

    started = []

    def make(**limits: Any) -> Engine:
        sizes = dataclasses.replace(EngineLimits(max_context=256, kv_budget_mb=64), **limits)
        engine = Engine(tiny_dir, sizes, decode=tokenizer.decoder(), weight_version="0")
        engine.start()
        started.append(engine)
        return engine

    yield make
    for engine in started:
        engine.stop()
