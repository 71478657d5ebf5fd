"""One engine for a run: started when first needed, then given other weights in place."""

import logging
import os
import sys
from pathlib import Path
from types import TracebackType

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.errors import ConfigError, ProcessError, ProviderError
from vf_pipeline.inference.control import EngineControl, list_models
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.processes import ManagedProcess, free_port
from vf_pipeline.types import ModelRef

logger = logging.getLogger(__name__)

SERVED_NAME = "builtin"
"""Name of the model in requests; which weights it has is told by /weight_info."""

_UPDATE_TIMEOUT_S = 150.0
_PROBE_TIMEOUT_S = 10.0


class EngineSession:
    """A context manager that knows how a run's models are served.

    Args:
        settings: which engine, and its sizes.
        run_dir: folder of the run; the engine logs there, and reads weights below it.
    """

    def __init__(self, settings: InferenceSettings, run_dir: str | Path) -> None:
        self.settings = settings
        self.run_dir = Path(run_dir)
        self._process: ManagedProcess | None = None
        self._control = EngineControl("")
        self._threads = 0
        self._roots: tuple[Path, ...] = ()

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
        if self._process is not None:
            self._process.stop()
            self._process = None

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
        if self.settings.engine == "endpoint":
            return self._foreign_endpoint(model)
        threads = threads or self.threads()
        if not self._serves(model, threads):
            self.close()
            self._start(model, threads)
        served = self._served_version()
        if served != model.digest:
            raise ProcessError(
                f"the engine serves the weights {served!r}, not {model.digest!r}",
                "another process may have updated it; run again",
            )
        return Endpoint(f"{self._control.root}/v1", SERVED_NAME)

    def _serves(self, model: ModelRef, threads: int) -> bool:
        """Return whether the running engine has, or now takes, a model's weights."""
        if self._process is None or threads != self._threads:
            return False
        if not self._process.running:
            tail = self._process.log_tail()
            logger.warning("the engine has died and is started again; its log ends with:\n%s", tail)
            return False
        if self._served_version() == model.digest:
            return True
        folder = Path(model.uri).resolve()
        if not any(folder.is_relative_to(root) for root in self._roots):
            return False
        try:
            self._control.load_weights(folder, model.digest)
        except ProviderError as error:
            self._process.check()
            logger.info("the engine is started again for %s: %s", model.uri, error)
            return False
        return True

    def _start(self, model: ModelRef, threads: int) -> None:
        settings = self.settings
        folder = Path(model.uri).resolve()
        port = free_port()
        self._roots = (self.run_dir.resolve(), folder)
        command = [
            *(sys.executable, "-m", "vf_pipeline.cli.serve", "--model", str(folder)),
            *("--served-model-name", SERVED_NAME, "--port", str(port)),
            *("--max-batch", str(settings.max_batch), "--max-context", str(settings.max_context)),
            *("--kv-budget-mb", str(settings.kv_budget_mb), "--threads", str(threads)),
            *("--weight-version", model.digest),
        ]
        for root in self._roots:
            command += ["--weights-root", str(root)]
        self._control = EngineControl(f"http://127.0.0.1:{port}", timeout_s=_UPDATE_TIMEOUT_S)
        self._threads = threads
        process = ManagedProcess(
            "the engine",
            command,
            log_path=self.run_dir / "logs" / "engine.log",
            env=_engine_environment(threads),
            ready_url=f"{self._control.root}/health",
            ready_timeout_s=settings.ready_timeout_s,
            record=self.run_dir / "processes.json",
        )
        process.start()
        self._process = process

    def _served_version(self) -> str:
        """Return the digest of the weights that the engine serves.

        Raises:
            ProcessError: the engine died.
            ProviderError: it did not answer in time.
        """
        try:
            return self._control.weight_version(_PROBE_TIMEOUT_S)
        except ProviderError:
            if self._process is not None:
                self._process.check()
            raise

    def _foreign_endpoint(self, model: ModelRef) -> Endpoint:
        """Return the configured endpoint, once it has answered."""
        if not self.settings.base_url:
            raise ConfigError(
                'inference.engine = "endpoint" needs an address', "set inference.base_url"
            )
        endpoint = Endpoint(self.settings.base_url, model.uri, self.settings.api_key_var)
        names = list_models(endpoint, _PROBE_TIMEOUT_S)
        if names and model.uri not in names:
            logger.warning("%s lists %s, not %r", endpoint.base_url, names[:5], model.uri)
        return endpoint


def _engine_environment(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # The engine serves its run alone: a key meant for another server must not lock it.
    fixed = {"VF_SERVE_API_KEY": "", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    fixed["OMP_WAIT_POLICY"] = "passive"
    return {**dict.fromkeys(names, str(threads)), **fixed}


def _cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
