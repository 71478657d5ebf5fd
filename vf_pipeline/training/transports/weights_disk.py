"""The engine that samples: is it there, which weights does it serve, and give it newer ones.

Weights travel as a folder with one safetensors file, which the engine loads in place.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import TrainingError
from vf_pipeline.types import WeightVersion


class Engine:
    """The control routes of the server behind an endpoint.

    Args:
        base_url: the endpoint; its routes stand beside ``/v1``.
        api_key_var: environment variable that holds the key, if one is needed.
        timeout_s: how long one request may take.
    """

    def __init__(self, base_url: str, api_key_var: str = "", timeout_s: float = 120.0) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self.timeout_s = timeout_s
        key = os.environ.get(api_key_var, "") if api_key_var else ""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # The engine is a neighbour: never through a proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def check_alive(self) -> None:
        """Make sure that somebody listens. A server too busy to answer counts as alive.

        Raises:
            TrainingError: the connection is refused.
        """
        try:
            self._open("/health", None, timeout_s=2.0)
        except urllib.error.HTTPError as error:
            error.close()
        except (ConnectionRefusedError, urllib.error.URLError) as error:
            if _refused(error):
                raise TrainingError(
                    f"the engine at {self.root} is gone: connection refused",
                    "see its log, then run the same command again",
                ) from None
        except OSError:
            return

    def version(self) -> str:
        """Return the version of the weights that are served.

        Raises:
            TrainingError: the engine does not say it.
        """
        return str(self._json("/weight_info", None).get("weight_version", ""))

    def load(self, folder: Path, version: str) -> None:
        """Make the engine serve the weights in a folder, and make sure that it does.

        Raises:
            TrainingError: it refused, did not answer in time, or still serves others.
        """
        body = {"weights_path": str(folder.absolute()), "weight_version": version}
        self._json("/update_weights", body)
        served = self.version()
        if served != version:
            raise TrainingError(
                f"the engine at {self.root} serves weights {served!r} after it was given "
                f"version {version}",
                "is another run using the same engine?",
            )

    def _json(self, route: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            answer = json.loads(self._open(route, body, self.timeout_s))
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(2000).decode(errors="replace").strip()
            hint = "GRPO needs vf-serve" if error.code == 404 else "see the engine's log"
            raise TrainingError(
                f"the engine at {self.root} answered {route} with {error.code}: {detail}", hint
            ) from None
        except TimeoutError:
            raise TrainingError(
                f"waited {self.timeout_s:.0f} s for {self.root}{route}", "see the engine's log"
            ) from None
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            raise TrainingError(
                f"the engine failed at {self.root}{route}: {cause}",
                "see its log, then run the same command again",
            ) from None
        return answer if isinstance(answer, dict) else {}

    def _open(self, route: str, body: dict[str, Any] | None, timeout_s: float) -> bytes:
        data = json.dumps(body).encode() if body is not None else None
        headers = {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(self.root + route, data=data, headers=headers)
        with self._opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())


class WeightSync:
    """Publishes each version's weights in a folder, and has the engine load them.

    Args:
        engine: the control routes of the engine that samples.
        weights_dir: folder that the engine may read weights from.
        training: digest of the training, which with the step names the weights.
    """

    def __init__(self, engine: Engine, weights_dir: Path, training: str = "") -> None:
        self.engine = engine
        self.training = training
        self.weights_dir = weights_dir

    def clear(self) -> None:
        """Remove the folders of all versions, also what a killed process left."""
        if self.weights_dir.is_dir():
            for path in self.weights_dir.iterdir():
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
            TrainingError: the engine did not take the weights.
        """
        self.engine.load(folder, str(WeightVersion(self.training, version)))
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
    return 28 if "No space" in str(error) or "code: 28" in str(error) else 0, str(error)


def _refused(error: Exception) -> bool:
    return isinstance(getattr(error, "reason", error), ConnectionRefusedError)
