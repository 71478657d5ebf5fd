"""One engine for a run: started when first needed, then given other weights in place."""

import os
from pathlib import Path
from types import TracebackType

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.serving.backends import BACKENDS
from vf_pipeline.types import ModelRef


class EngineSession:
    """A context manager that knows how a run's models are served.

    Example::

        with EngineSession(InferenceSettings(), "runs/demo") as session:
            endpoint = session.endpoint_for(base)
            ...
            endpoint = session.endpoint_for(trained)  # in place, without a start

    Args:
        settings: which engine, and its sizes.
        run_dir: folder of the run; the engine logs there, and reads weights below it.
    """

    def __init__(self, settings: InferenceSettings, run_dir: str | Path) -> None:
        self.settings = settings
        self.run_dir = Path(run_dir)
        self._backend = BACKENDS[settings.engine](settings, self.run_dir)

    def __enter__(self) -> "EngineSession":
        """Return the session; nothing is started yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the engine, if it runs."""
        self.close()

    def close(self) -> None:
        """End the engine, if it runs."""
        self._backend.stop()

    def threads(self) -> int:
        """Return the threads of the engine, and of a trainer beside it: as many as there are cores.

        Two processes may have them at once because their threads sleep while they wait
        (OMP_WAIT_POLICY=passive). Threads that spin take each other's turns: on two cores, a step
        was measured at 26 s beside one busy process instead of 8 s.
        """
        return self.settings.threads or _cores()

    def endpoint_for(self, model: ModelRef, *, threads: int = 0) -> Endpoint:
        """Return an endpoint that serves a model's weights.

        Args:
            model: folder and digest of the weights; the digest is what /weight_info must answer.
            threads: threads of the engine; 0 is what the settings say. The engine is started again
                where it has others.

        Raises:
            ConfigError: the model cannot be served.
            ProcessError: the engine died, or did not become ready.
            ProviderError: the configured endpoint cannot be reached.
        """
        threads = threads or self.threads()
        # stop() also where nothing runs any more: it clears what a dead engine left behind.
        if not self._backend.serves(model, threads):
            self._backend.stop()
            self._backend.start(model, threads)
        return self._backend.endpoint(model)


def _cores() -> int:
    """Return the cores that this process may use."""
    # A container may have fewer cores than the machine that os.cpu_count() counts.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
