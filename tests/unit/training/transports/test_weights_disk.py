import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_stub import stub_engine
from safetensors.torch import load_file

from vf_pipeline.errors import TrainingError
from vf_pipeline.training.transports.weights_disk import Engine, WeightSync


def test_each_version_replaces_the_one_before(model: Any, tmp_path: Path) -> None:
    with stub_engine() as engine:
        sync = WeightSync(Engine(engine.url), tmp_path / "weights", "train")
        for version in (0, 1):
            sync.load(sync.write(model, version), version)
            folder = tmp_path / "weights" / f"v{version}"
            assert engine.loaded[-1] == {
                "weights_path": str(folder),
                "weight_version": ("train", "train@1")[version],
            }
        assert [path.name for path in (tmp_path / "weights").iterdir()] == ["v1"]
        tensors = load_file(tmp_path / "weights" / "v1" / "model.safetensors")
    names = set(model.state_dict()) - {"lm_head.weight"}
    assert set(tensors) == names, "tied weights are written once"
    assert all(torch.equal(tensors[name], model.state_dict()[name]) for name in names)
    (tmp_path / "weights" / ".v2.123.partial").mkdir()
    (tmp_path / "weights" / "other").mkdir()
    sync.clear()
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["other"]


def test_refusals_are_named(model: Any, tmp_path: Path) -> None:
    with stub_engine() as engine:
        sync = WeightSync(Engine(engine.url), tmp_path)
        engine.refuse = 400
        with pytest.raises(TrainingError, match=r"/update_weights with 400: .*no such folder"):
            sync.load(sync.write(model, 1), 1)
        engine.refuse = 404
        with pytest.raises(TrainingError, match="needs vf-serve"):
            sync.load(sync.write(model, 1), 1)
        engine.refuse = 0
        engine.forget = True
        with pytest.raises(TrainingError, match="serves weights 'start' after it was given"):
            sync.load(sync.write(model, 1), 1)


def test_a_dead_engine_is_noticed(model: Any, tmp_path: Path) -> None:
    with stub_engine() as alive:
        Engine(alive.url).check_alive()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = Engine(f"http://127.0.0.1:{free.getsockname()[1]}/v1")
    with pytest.raises(TrainingError, match="gone: connection refused"):
        gone.check_alive()
    with pytest.raises(TrainingError, match="failed at"):
        sync = WeightSync(gone, tmp_path)
        sync.load(sync.write(model, 1), 1)


def test_an_engine_that_is_busy_is_alive_but_a_wait_is_bounded() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        engine = Engine(f"http://127.0.0.1:{mute.getsockname()[1]}/v1", timeout_s=0.2)
        with pytest.raises(TrainingError, match=r"waited 0 s|failed at"):
            engine.version()
