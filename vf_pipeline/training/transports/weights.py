"""How new weights reach the engine: the protocol. Each way is a file beside this one."""

from pathlib import Path
from typing import Any, Protocol


class WeightTransport(Protocol):
    """Publishes each version of the weights, and has the engine serve it.

    Writing and loading are two calls: the trainer may go on while the engine loads.
    """

    def clear(self) -> None:
        """Remove what earlier versions left, also of a process that was killed."""

    def write(self, model: Any, version: int) -> Path:
        """Publish the model's weights as a version, and return where they are."""
        ...

    def load(self, folder: Path, version: int) -> None:
        """Have the engine serve a version that was published, and make sure that it does."""
