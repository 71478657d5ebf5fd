from pathlib import Path
from typing import Any

import pytest
import torch
from engine_stub import stub_engine
from safetensors.torch import load_file

from vf_pipeline.errors import ProviderError
from vf_pipeline.inference.control import EngineControl
from vf_pipeline.training.transports.weights_disk import DiskWeights


def test_each_version_replaces_the_one_before(model: Any, tmp_path: Path) -> None:
    with stub_engine() as engine:
        sync = DiskWeights(EngineControl(engine.url), tmp_path / "weights", "train")
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


def test_a_refusal_keeps_the_version_before(model: Any, tmp_path: Path) -> None:
    with stub_engine() as engine:
        sync = DiskWeights(EngineControl(engine.url), tmp_path)
        sync.load(sync.write(model, 1), 1)
        engine.refuse = 400
        with pytest.raises(ProviderError, match="no such folder"):
            sync.load(sync.write(model, 2), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2"]
