"""What a run needs of an engine, whoever made it.

           ┌──────────── serves(model)? yes: it has the weights, or took them in place
           ▼                      │ no
start ──► serving ◄──start── stopped ◄──stop()
"""

from typing import Protocol

from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.types import ModelRef


class Backend(Protocol):
    """One engine of a run; it serves one model at a time."""

    def start(self, model: ModelRef, threads: int) -> None:
        """Serve a model, and wait until it answers. Called on a backend that is stopped.

        Args:
            model: folder and digest of the weights, or the name by which a foreign server has it.
            threads: threads that the engine may use.

        Raises:
            ConfigError: the model cannot be served, or a setting is missing.
            ProcessError: the engine died, or did not become ready in time.
            ProviderError: a server that should run already cannot be reached.
        """

    def serves(self, model: ModelRef, threads: int) -> bool:
        """Return whether the model is served now; weights that can change in place are changed.

        False asks for ``stop`` and ``start``; so does an engine that has died.
        """

    def endpoint(self, model: ModelRef) -> Endpoint:
        """Return where a model is served that ``start`` or ``serves`` has just seen to.

        Raises:
            ProcessError: the engine died, or serves other weights.
        """

    def stop(self) -> None:
        """End what ``start`` started; nothing to do where nothing runs."""
