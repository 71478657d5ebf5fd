"""New weights for the engine that samples, by way of the disk.

Weights travel as a folder with one safetensors file, which the engine loads in place.
"""

from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.inference.control import EngineControl
from vf_pipeline.types import WeightVersion


class DiskWeights:
    """Publishes each version's weights in a folder, and has the engine load them.

    Args:
        engine: the control routes of the engine that samples.
        weights_dir: folder that the engine may read weights from.
        training: digest of the training, which with the step names the weights.
    """

    def __init__(self, engine: EngineControl, weights_dir: Path, training: str = "") -> None:
        self.engine = engine
        self.training = training
        self.weights_dir = weights_dir

    def clear(self) -> None:
        """Remove the folders of all versions, also what a killed process left."""
        if self.weights_dir.is_dir():
            for path in self.weights_dir.iterdir():
                # With a dot in front while storage.atomic_path has not renamed them.
                if path.name.lstrip(".").startswith("v"):
                    storage.remove(path)

    def write(self, model: Any, version: int) -> Path:
        """Write the model's weights as a version, and return its folder.

        Raises:
            StorageError: the weights cannot be written.
        """
        folder = self.weights_dir / f"v{version}"
        with storage.atomic_path(folder) as temporary:
            temporary.mkdir()
            write_weights(model, temporary / "model.safetensors")
        return folder

    def load(self, folder: Path, version: int) -> None:
        """Have the engine serve a version that was written; older folders are removed.

        Raises:
            ProviderError: the engine did not take the weights.
        """
        self.engine.load_weights(folder, str(WeightVersion(self.training, version)))
        # The engine has confirmed the version by now, and no longer needs what it had before.
        for path in self.weights_dir.iterdir():
            if path != folder and path.name.lstrip(".").startswith("v"):
                storage.remove(path)


def write_weights(model: Any, path: Path) -> None:
    """Write a model's weights into one safetensors file; tied weights are written once.

    Raises:
        StorageError: there is no space, or no permission.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        # safetensors refuses tensors that share memory; the engine ties them again by its config.
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().contiguous().cpu()
    try:
        save_file(tensors, str(path), metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise storage.explain_os_error(OSError(*_errno(error)), "write", path) from error


def _errno(error: Exception) -> tuple[int, str]:
    """Return the errno of a failed write; safetensors keeps it in its text alone."""
    if isinstance(error, OSError):
        return error.errno or 0, error.strerror or str(error)
    # 28 is ENOSPC; Rust writes it as text for people, or in its debug form.
    return 28 if "No space" in str(error) or "code: 28" in str(error) else 0, str(error)
