"""What must be there before a run starts: extras, environment, disk, a trainable model."""

import importlib.util
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.errors import ConfigError, PrerequisiteError, StorageError, UnknownNameError
from vf_pipeline.registry import installed_environments

_EXTRAS = {"pipeline": ("prefect", "mlflow"), "train": ("torch", "transformers", "accelerate")}
_BYTES_PER_RUN = 6_000_000_000


def check_extras() -> None:
    """Check that the packages of the chain are installed.

    Raises:
        PrerequisiteError: one is missing; names the extra that brings it.
    """
    for extra, packages in _EXTRAS.items():
        for package in packages:
            if importlib.util.find_spec(package) is None:
                raise PrerequisiteError(
                    f"{package} is not installed",
                    f"make setup, or pip install 'vf-pipeline[{extra}]'",
                )


def check_run(config: PipelineConfig, folder: Path) -> None:
    """Check the settings against this machine.

    Raises:
        UnknownNameError: the environment is not installed.
        ConfigError: the chain trains its model, which an endpoint does not allow.
        StorageError: the disk is too small.
    """
    known = installed_environments()
    module = config.environment.id.replace("-", "_")
    if config.environment.id not in known and not _importable(module):
        hint = f"install it: pip install -e envs/{module}"
        raise UnknownNameError("environment", config.environment.id, known, hint)
    if config.inference.engine == "endpoint":
        raise ConfigError(
            "config key 'inference.engine': the chain trains the model it serves, "
            "which an endpoint does not allow",
            'use engine = "builtin"; to measure an endpoint: vf-eval ENV -b URL -m MODEL',
        )
    free = storage.free_bytes(folder)
    if free < _BYTES_PER_RUN:
        raise StorageError(
            f"a run needs about {_BYTES_PER_RUN / 1e9:.0f} GB of disk, {folder.parent} has "
            f"{free / 1e9:.1f} GB",
            "free some space, or set VF_RUNS to a folder on a larger disk",
        )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
