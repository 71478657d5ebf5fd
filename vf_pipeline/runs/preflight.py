"""What must be there before a run starts: extras, disk, a trainable model."""

import importlib.util
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import ConfigError, PrerequisiteError, StorageError

_EXTRAS = {"pipeline": ("prefect", "mlflow"), "train": ("torch", "transformers", "accelerate")}
# The default model has 135 million parameters, of 4 bytes each while they are trained.
_WEIGHTS_BYTES = 540_000_000
_WEIGHTS_PER_RUN = 11
"""Most copies of the weights on disk at once: models, published versions, checkpoints with their
optimizer's state while a new one replaces an old one."""


def check_extras(*extras: str) -> None:
    """Check that the packages of some extras are installed.

    Raises:
        PrerequisiteError: one is missing; names the extra that brings it.
    """
    for extra in extras:
        for package in _EXTRAS[extra]:
            if importlib.util.find_spec(package) is None:
                raise PrerequisiteError(
                    f"{package} is not installed",
                    f"make setup, or pip install 'vf-pipeline[{extra}]'",
                )


def check_run(config: PipelineConfig, folder: Path) -> None:
    """Check the settings against this machine.

    Raises:
        ConfigError: the chain trains its model, which an endpoint does not allow.
        StorageError: the disk is too small.
    """
    if config.inference.engine == "endpoint":
        raise ConfigError(
            "config key 'inference.engine': the chain trains the model it serves, "
            "which an endpoint does not allow",
            'use engine = "builtin"; to measure an endpoint: vf-eval ENV -b URL -m MODEL',
        )
    # A run that is resumed has part of it on the disk already.
    needed = _WEIGHTS_PER_RUN * _weights_bytes(config.model.name) - _size(folder)
    free = storage.free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"the run needs about {needed / 1e9:.1f} GB more of disk, {folder.parent} has "
            f"{free / 1e9:.1f} GB",
            "free some space, or set VF_RUNS to a folder on a larger disk",
        )


def _weights_bytes(name: str) -> int:
    """Return the size of a local folder's weights; others count as large as the default model."""
    local = sum(path.stat().st_size for path in Path(name).glob("*.safetensors"))
    return local or _WEIGHTS_BYTES


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
