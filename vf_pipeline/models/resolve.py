"""A model's name to its weights: a name known here, a local folder, or a hub id.

Deliberately lacks quantization: what is trained has full precision.
"""

import re
from pathlib import Path

from vf_pipeline.errors import ConfigError, PrerequisiteError, UnknownNameError
from vf_pipeline.models.weights import weights_digest
from vf_pipeline.models.wheels import KNOWN, model_from_wheel
from vf_pipeline.types import ModelRef

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(name: str) -> ModelRef:
    """Return the weights that a name stands for: a folder on this disk, and their digest.

    Args:
        name: a key of ``KNOWN``, a local folder of safetensors, or a hub id ("org/name").

    Raises:
        UnknownNameError: the name is none of these.
        ConfigError: the folder lacks a config or safetensors.
        PrerequisiteError: the weights cannot be reached, or a package is missing.
        StorageError: what was downloaded is not what was published, or the cache cannot be written.
        ProcessError: the conversion failed.
    """
    if not name.strip():
        raise ConfigError("the model has no name", f"one of {', '.join(KNOWN)}, a folder, a hub id")
    # First, so that a folder of that name in the working directory does not change what a config
    # means.
    if name in KNOWN:
        return model_from_wheel(name, KNOWN[name])
    folder = Path(name.removeprefix("file://")).expanduser()
    if folder.is_dir():
        return _local(folder)
    # A path that does not exist: asking the hub for it would hide the typing error.
    if name.startswith(("/", "./", "../", "~", "file://")):
        raise ConfigError(f"there is no model folder {name!r}", "check the path")
    if _HUB_ID.fullmatch(name):
        return _local(_hub_snapshot(name))
    hint = "or give a local folder of safetensors, or a hub id (org/name)"
    raise UnknownNameError("model", name, KNOWN, hint)


def _local(folder: Path) -> ModelRef:
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is no model folder: it has no config.json",
            "give the folder that save_pretrained() wrote",
        )
    return ModelRef(uri=str(folder.absolute()), digest=weights_digest(folder))


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        # Neither pickles (*.bin) nor code (*.py): what is loaded must not be able to run.
        patterns = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except errors.GatedRepoError as error:
        raise PrerequisiteError(
            f"the hub wants you to accept the terms of {name!r} first",
            "accept them on its page, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError:
        raise UnknownNameError("model", name, KNOWN, "the hub does not have it either") from None
    except OSError as error:
        raise PrerequisiteError(
            f"{name!r} is no folder here, and the model hub cannot be reached",
            f"connect, or use a local folder or one of: {', '.join(KNOWN)}",
        ) from error
