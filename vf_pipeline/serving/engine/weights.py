"""Weights of a running model, replaced in place: all is checked before anything is copied."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from vf_pipeline.errors import ConfigError


def replace_weights(model: torch.nn.Module, folder: Path) -> None:
    """Copy a folder of safetensors into a model; either all of it, or nothing.

    Raises:
        ConfigError: a file is missing or damaged, or a name, a shape or a value does not fit.
    """
    targets = _by_storage(model)
    tensors = _read(folder, {name for names in targets.values() for name in names})
    state = model.state_dict(keep_vars=True)
    plan: list[tuple[torch.Tensor, torch.Tensor]] = []
    for names in targets.values():
        given = [name for name in names if name in tensors]
        if not given:
            raise ConfigError(f"{folder} lacks the weight {names[0]!r}", "save the whole model")
        name = given[0]
        if tensors[name].shape != state[name].shape:
            raise ConfigError(
                f"weight {name!r} in {folder} has shape {list(tensors[name].shape)}, "
                f"the served model has {list(state[name].shape)}",
                "only weights of the same architecture can be loaded in place",
            )
        if not torch.isfinite(tensors[name]).all():
            raise ConfigError(f"weight {name!r} in {folder} holds NaN or infinity")
        plan.append((state[name], tensors[name]))
    with torch.no_grad():
        # In place: the decoder's parts, and tied weights, go on pointing at these tensors. copy_
        # converts, so that a file may hold another dtype than the model.
        for target, source in plan:
            target.copy_(source)


def _by_storage(model: torch.nn.Module) -> dict[int, list[str]]:
    """Group the names of tied weights: they are one tensor, and files may hold any of the names."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(tensor.data_ptr(), []).append(name)
    return groups


def _read(folder: Path, expected: set[str]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                _refuse_unknown(path, names, expected)
                tensors.update({name: file.get_tensor(name) for name in names})
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot read the weights in {path}: {error}") from error
    return tensors


def _refuse_unknown(path: Path, names: Iterable[str], expected: set[str]) -> None:
    unknown = sorted(set(names) - expected)
    if unknown:
        raise ConfigError(
            f"{path} holds weights that the served model lacks: {', '.join(unknown[:3])}",
            "only weights of the same architecture can be loaded in place",
        )


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    try:
        if index.exists():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            # Only the last part of a name: an index must not lead out of the folder.
            return [folder / Path(name).name for name in sorted(names)]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"cannot read {index}: {error}") from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"no safetensors file in {folder}", "save the model there first")
    return files
