"""The built-in engine in a process of its own: started for one model, given others in place."""

import logging
import sys
from pathlib import Path

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.errors import ProcessError, ProviderError
from vf_pipeline.inference.control import EngineControl
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.processes import ManagedProcess, free_port
from vf_pipeline.types import ModelRef

logger = logging.getLogger(__name__)

SERVED_NAME = "builtin"
"""Name of the model in requests; which weights it has is told by /weight_info."""

# Longer than the server's own 60 + 60 s (http/routes.py), so that its reason arrives.
_UPDATE_TIMEOUT_S = 150.0
_PROBE_TIMEOUT_S = 10.0


class BuiltinBackend:
    """``python -m vf_pipeline.cli.serve`` on a free port of this machine.

    Args:
        settings: the engine's sizes.
        run_dir: folder of the run; the engine logs there, and reads weights below it.
    """

    def __init__(self, settings: InferenceSettings, run_dir: Path) -> None:
        self.settings = settings
        self.run_dir = run_dir
        self._process: ManagedProcess | None = None
        self._control = EngineControl("")
        self._threads = 0
        self._roots: tuple[Path, ...] = ()

    def start(self, model: ModelRef, threads: int) -> None:
        """Start the engine on a model, and wait until it is ready.

        Raises:
            ProcessError: it died, or did not become ready in time.
        """
        folder = Path(model.uri).resolve()
        # Free now, taken by the child: if somebody is quicker, it ends at once and says so, for it
        # binds before it loads.
        port = free_port()
        # The run's folder for weights trained later, the model's own for going back to it.
        self._roots = (self.run_dir.resolve(), folder)
        self._threads = threads
        self._control = EngineControl(f"http://127.0.0.1:{port}", timeout_s=_UPDATE_TIMEOUT_S)
        process = ManagedProcess(
            "the engine",
            self._command(folder, model.digest, port),
            log_path=self.run_dir / "logs" / "engine.log",
            env=_environment(threads),
            ready_url=f"{self._control.root}/health",
            ready_timeout_s=self.settings.ready_timeout_s,
            record=self.run_dir / "processes.json",
        )
        process.start()
        self._process = process

    def serves(self, model: ModelRef, threads: int) -> bool:
        """Return whether the running engine has, or now takes, a model's weights.

        Raises:
            ProcessError: the engine died while it was asked.
            ProviderError: it does not answer.
        """
        # The number of threads is fixed at the start.
        if self._process is None or threads != self._threads:
            return False
        if not self._process.running:
            tail = self._process.log_tail()
            logger.warning("the engine has died and is started again; its log ends with:\n%s", tail)
            return False
        return self._served_version() == model.digest or self._take(model)

    def endpoint(self, model: ModelRef) -> Endpoint:
        """Return the engine's address, once it has said that it serves these weights.

        Raises:
            ProcessError: the engine died, or serves others.
        """
        served = self._served_version()
        if served != model.digest:
            raise ProcessError(
                f"the engine serves the weights {served!r}, not {model.digest!r}",
                "another process may have updated it; run again",
            )
        return Endpoint(f"{self._control.root}/v1", SERVED_NAME)

    def stop(self) -> None:
        """End the engine, if it runs."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _take(self, model: ModelRef) -> bool:
        """Return whether the engine now has a model's weights; others cost a start."""
        folder = Path(model.uri).resolve()
        # The server would refuse it: it reads below its --weights-root alone.
        if not any(folder.is_relative_to(root) for root in self._roots):
            return False
        try:
            self._control.load_weights(folder, model.digest)
        except ProviderError as error:
            self._check_process()
            # Refused, not dead: weights of another architecture are no error of the run.
            logger.info("the engine is started again for %s: %s", model.uri, error)
            return False
        return True

    def _served_version(self) -> str:
        try:
            return self._control.weight_version(_PROBE_TIMEOUT_S)
        except ProviderError:
            # A dead process explains more than a connection that broke.
            self._check_process()
            raise

    def _check_process(self) -> None:
        if self._process is not None:
            self._process.check()

    def _command(self, folder: Path, digest: str, port: int) -> list[str]:
        settings = self.settings
        command = [
            *(sys.executable, "-m", "vf_pipeline.cli.serve", "--model", str(folder)),
            *("--served-model-name", SERVED_NAME, "--port", str(port)),
            *("--max-batch", str(settings.max_batch), "--max-context", str(settings.max_context)),
            *("--kv-budget-mb", str(settings.kv_budget_mb), "--threads", str(self._threads)),
            *("--weight-version", digest),
        ]
        for root in self._roots:
            command += ["--weights-root", str(root)]
        return command


def _environment(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # The engine serves its run alone: a key meant for another server must not lock it.
    fixed = {"VF_SERVE_API_KEY": "", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    # Threads that spin while they wait would take the trainer's turns.
    fixed["OMP_WAIT_POLICY"] = "passive"
    return {**dict.fromkeys(names, str(threads)), **fixed}
