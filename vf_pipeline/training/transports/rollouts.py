"""The trainer's end of the rollout worker: start it, allow steps, and wait for them, with a bound.

Every wait names what it waits for. A dead worker or engine ends it within seconds.

    allow(k) ──► worker plays step k ──► reader thread ──► queue ──► take(k)
                     │                                                  ▲ ends otherwise with
                     ├─ says why it ends, or dies ──────────────────────┤ TrainingError
                     ├─ sends nothing for stall_timeout_s ──────────────┤ TrainingError
                     └─ its engine refuses connections ─────────────────┘ UnreachableError

The feed starts its worker when it is made; ``close`` ends it, and so does this process's end.
"""

import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from vf_pipeline.errors import TrainingError
from vf_pipeline.training.groups import StepGroups
from vf_pipeline.training.transports.messages import Allow, InFlight, PlayOrder, WorkerFailure

log = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
_POLL_S = 0.25


class RolloutFeed:
    """Rollouts of one step after the other, from a process of their own.

    Args:
        order: what is played, and from where on.
        probe: raises UnreachableError when the engine is gone; called every two seconds of a wait.
        target: what the process runs; ``worker.process.run_worker``.
    """

    def __init__(
        self, order: PlayOrder, probe: Callable[[], None], target: Callable[..., None]
    ) -> None:
        self.order = order
        self._probe = probe
        self._steps: queue.Queue[StepGroups] = queue.Queue()
        self._failure: WorkerFailure | None = None
        self._in_flight = 0
        self._last = order.step - 1
        self._heard_at = time.monotonic()
        # Not fork: a copy of this process would hold this end of the commands too, and never see
        # it go; and it would have all that was imported here.
        context = multiprocessing.get_context("spawn")
        command_end, self._commands = context.Pipe(duplex=False)
        self._results, result_end = context.Pipe(duplex=False)
        self._process = context.Process(
            target=target, args=(order, command_end, result_end), name="rollout-worker", daemon=True
        )
        self._process.start()
        # Only the worker holds these ends now, so that its death is an end of file here.
        command_end.close()
        result_end.close()
        # Reads all the time into an unbounded queue: a pipe holds 64 KiB, and a worker that waits
        # for a trainer in its backward pass would play nothing meanwhile.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def allow(self, step: int, version: int) -> None:
        """Let the worker play steps up to ``step``, with weights of a version.

        Raises:
            TrainingError: the worker is dead.
        """
        try:
            # From one thread at a time, for a Connection has no lock: first from the one that makes
            # the objective, then from the single thread that loads weights.
            self._commands.send(Allow(step, version))
        except OSError:
            # It may have played all there is to play, and be gone.
            self._reader.join(timeout=5.0)
            if self._last < self.order.spec.grpo.steps - 1:
                self._check_worker(step)
                raise TrainingError("the rollout worker closed its pipe") from None

    def take(self, step: int) -> StepGroups:
        """Return the groups of a step; steps come in order.

        Raises:
            TrainingError: the worker is dead, or no rollout was finished for ``stall_timeout_s``.
            UnreachableError: the engine is gone.
        """
        # The worker's silence counts from here at the earliest: while nobody waited, it may have
        # had nothing left that it was allowed to play.
        since = time.monotonic()
        probe_at = since + PROBE_EVERY_S
        while True:
            try:
                played = self._steps.get(timeout=_POLL_S)
            except queue.Empty:
                now = time.monotonic()
                self._check_worker(step)
                if now >= probe_at:
                    self._probe()
                    probe_at = now + PROBE_EVERY_S
                self._check_stall(step, now - max(since, self._heard_at))
                continue
            if played.step != step:
                raise TrainingError(f"the worker played step {played.step}, wanted was {step}")
            return played

    def close(self) -> None:
        """End the worker; its process is gone afterwards."""
        # An end of file for the worker, which then exits by itself.
        self._commands.close()
        self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(timeout=5.0)
        # The reader first: the number of a closed descriptor may soon be that of another file.
        self._reader.join(timeout=2.0)
        self._results.close()
        self._process.close()

    def _check_worker(self, step: int) -> None:
        if self._failure is not None:
            raise TrainingError(self._failure.message, self._failure.hint)
        if not self._process.is_alive() and self._steps.empty():
            # Its last words may still be in the pipe.
            self._reader.join(timeout=2.0)
            if self._failure is not None:
                raise TrainingError(self._failure.message, self._failure.hint)
            if self._steps.empty():
                raise TrainingError(
                    f"the rollout worker died with exit code {self._process.exitcode} "
                    f"before the rollouts of step {step} were done",
                    "see the training log; 137 and -9 mean killed, often for memory",
                )

    def _check_stall(self, step: int, waited: float) -> None:
        settings = self.order.spec.grpo
        if waited > settings.stall_timeout_s:
            total = settings.groups * settings.group_size
            raise TrainingError(
                f"waited {waited:.0f} s for rollouts of step {step} "
                f"(worker alive, {self._in_flight} of {total} in flight)",
                "see the engine's log; raise grpo.stall_timeout_s if one rollout takes longer",
            )

    def _read(self) -> None:
        while True:
            try:
                message: Any = self._results.recv()
            except (EOFError, OSError):
                return
            self._heard_at = time.monotonic()
            if isinstance(message, InFlight):
                self._in_flight = message.count
            elif isinstance(message, WorkerFailure):
                self._failure = message
            else:
                self._last = message.step
                self._steps.put(message)
