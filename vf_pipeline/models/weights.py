"""Weights as files: their digest, and a trained model's folder published whole."""

from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.errors import ConfigError


def weights_digest(folder: str | Path) -> str:
    """Return the digest over a folder's safetensors files; nothing else in it counts.

    Raises:
        ConfigError: the folder has none.
        StorageError: a file cannot be read.
    """
    # Sorted: the order of a folder's listing is its file system's own.
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"{folder} holds no *.safetensors", "save the model with save_pretrained() there"
        )
    return storage.digest_files(files)
