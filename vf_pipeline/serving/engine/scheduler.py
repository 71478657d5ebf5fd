"""The built-in engine: continuous batching over key-value slots, in one worker thread.

A request's prompt is computed once for its n samples; prompts that wait together are computed
together, and their common prefix once. A sequence that is done makes room at once. In deterministic
mode one request at a time fills the batch, and nothing is shared between requests.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from pathlib import Path

import torch

from vf_pipeline.errors import ConfigError, ProcessError
from vf_pipeline.serving.engine.batch import Batch, Start
from vf_pipeline.serving.engine.decoder import Decoder
from vf_pipeline.serving.engine.requests import (
    Counters,
    EngineLimits,
    GenerationRequest,
    WeightUpdate,
)
from vf_pipeline.serving.engine.weights import replace_weights
from vf_pipeline.tokens.detokenize import Decode

logger = logging.getLogger(__name__)

# Requests of one rollout batch arrive by HTTP one after another. Alone, the first would be a batch
# of one whose step the others wait for, and would share no prefix with them. The second bound is
# for callers that never pause.
_GATHER_S = 0.003
_GATHER_MOST_S = 0.03
# A step that hangs must not hang the end of the process; the thread is a daemon.
_STOP_WAIT_S = 10.0


class Engine:
    """Samples from one model for many callers.

    Args:
        model_dir: folder with config.json and safetensors.
        limits: sizes.
        decode: ids to text, used in the worker thread alone, for stop strings.
        eos_ids: ids that end a turn, besides the model's own.
        weight_version: name of the weights that the folder holds.

    Raises:
        ConfigError: the model cannot be served, or one sequence does not fit into the budget.
    """

    def __init__(
        self,
        model_dir: str | Path,
        limits: EngineLimits,
        *,
        decode: Decode,
        eos_ids: Sequence[int] = (),
        weight_version: str = "",
    ) -> None:
        torch.set_num_threads(limits.threads)
        self.limits = limits
        self.weight_version = weight_version
        self.counters = Counters()
        self._decoder = Decoder(model_dir, limits.max_context)
        eos = frozenset(eos_ids) | self._decoder.eos_ids
        self._batch = Batch(self._decoder, limits, decode, eos, self.counters)
        self._inbox: queue.SimpleQueue[GenerationRequest | WeightUpdate | None] = (
            queue.SimpleQueue()
        )
        self._waiting: list[GenerationRequest] = []
        self._starting: list[GenerationRequest] = []
        self._update: WeightUpdate | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="vf-engine", daemon=True)

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sent as ids."""
        return self._decoder.vocab_size

    @property
    def alive(self) -> bool:
        """Whether the worker thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the worker thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker thread; what still runs fails."""
        self._stopping = True
        self._inbox.put(None)
        if self.alive:
            self._thread.join(timeout=_STOP_WAIT_S)

    def submit(self, item: GenerationRequest | WeightUpdate) -> None:
        """Queue a request or a weight update; its future holds the outcome. Thread-safe.

        Cancelling a request's future drops what is left of it.
        """
        if isinstance(item, GenerationRequest) and self._batch.capacity(item.length) < 1:
            # It would never get a slot, and all behind it would wait with it.
            limits = f"max_context {self.limits.max_context} or kv_budget_mb"
            _fail(item, ConfigError(f"{item.length} tokens do not fit", f"raise {limits}"))
            return
        # Put first, then look: a thread that ended in between has not seen the item.
        self._inbox.put(item)
        if self._stopping or not self.alive:
            self._fail_all()

    def _run(self) -> None:
        torch.set_num_threads(self.limits.threads)
        try:
            # Set for this thread, where the slots are written: the mode is a thread's own, and
            # outside of it tensors made under it refuse to be written.
            with torch.inference_mode():
                while not self._stopping:
                    self._receive()
                    self._turn()
        finally:
            self._stopping = True
            self._fail_all()

    def _turn(self) -> None:
        try:
            self._waiting = [r for r in self._waiting if not r.future.done()]
            self._batch.drop_cancelled()
            # After the cancelled are gone, for it waits for what runs; before _admit, so that what
            # waits starts with the new weights in this very turn.
            self._update_when_idle()
            self._admit()
            if self._batch.sequences:
                self._batch.step()
        except Exception as error:
            logger.exception("the engine failed in a step; the running requests fail with it")
            self._fail_running(ProcessError(f"the engine failed: {type(error).__name__}: {error}"))
        self.counters.running = len(self._batch)
        self.counters.waiting = sum(request.waiting for request in self._waiting)

    def _receive(self) -> None:
        """Take in what has arrived; when idle, wait for the first and shortly for its company."""
        # A turn without work would spin; one with work must not wait.
        idle = not (self._batch.sequences or self._waiting or self._update)
        if idle:
            self._sort_in(self._inbox.get())
        gather = idle and not self.limits.deterministic
        give_up = time.monotonic() + (_GATHER_MOST_S if gather else 0.0)
        with suppress(queue.Empty):
            while not self._stopping:
                if time.monotonic() < give_up:
                    self._sort_in(self._inbox.get(timeout=_GATHER_S))
                else:
                    self._sort_in(self._inbox.get_nowait())

    def _sort_in(self, item: GenerationRequest | WeightUpdate | None) -> None:
        if isinstance(item, GenerationRequest):
            self._waiting.append(item)
        elif isinstance(item, WeightUpdate):
            if self._update is not None:
                _fail(item, ConfigError("another weight update is under way"))
            else:
                self._update = item

    def _update_when_idle(self) -> None:
        """Load other weights once no started request is left; give up at the deadline."""
        update = self._update
        if update is None:
            return
        if update.future.cancelled():
            self._update = None
        # Also while samples of a started group wait for slots: a group has one version.
        elif self._batch.sequences or any(request.started for request in self._waiting):
            if time.monotonic() > update.deadline:
                self._update = None
                _fail(update, TimeoutError(f"{len(self._batch)} sequences still run"))
        else:
            self._update = None
            self._load_weights(update)

    def _load_weights(self, update: WeightUpdate) -> None:
        try:
            replace_weights(self._decoder.model, Path(update.folder))
        except Exception as error:
            _fail(update, error)
            return
        # All before the future: whoever waits for it asks /weight_info next, or samples.
        self._batch.forget_prefixes()
        self.weight_version = update.version
        with suppress(InvalidStateError):
            update.future.set_result(update.version)

    def _admit(self) -> None:
        """Give waiting requests slots, in order of arrival; a group starts as a whole."""
        if self.limits.deterministic and self._batch.sequences:
            return
        starts: list[Start] = []
        taken, length = len(self._batch), self._batch.length
        for request in self._waiting:
            if self._update is not None and not request.started:
                continue
            # Slots are equally long: one long request makes all of them long, and so fewer.
            needed = max(length, request.length)
            free = self._batch.capacity(needed) - taken
            # Only a group that could never start whole is split: each part costs a prefill.
            count = request.waiting if request.waiting <= free else (0 if taken else free)
            # Nobody overtakes: small requests would keep a large group waiting for ever.
            if count <= 0:
                break
            starts.append((request, count))
            taken, length = taken + count, needed
            if self.limits.deterministic:
                break
        if starts:
            # Known until their sequences exist: a failing prefill must not forget its requests.
            self._starting = [request for request, _ in starts]
            self._batch.start(starts, length, self.weight_version)
            self._starting = []
            self._waiting = [request for request in self._waiting if request.waiting]

    def _fail_running(self, error: Exception) -> None:
        failed = [sequence.request for sequence in self._batch.sequences] + self._starting
        self._starting = []
        self._batch.clear()
        for request in failed:
            _fail(request, error)
        self._waiting = [request for request in self._waiting if not request.future.done()]

    def _fail_all(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._sort_in(self._inbox.get_nowait())
        error = ProcessError("the engine has ended", "start vf-serve again")
        # Those that were starting are among the waiting still.
        pending: list[GenerationRequest | WeightUpdate] = [s.request for s in self._batch.sequences]
        pending += [*self._waiting, *([self._update] if self._update else [])]
        for item in pending:
            _fail(item, error)


def _fail(item: GenerationRequest | WeightUpdate, error: BaseException) -> None:
    with suppress(InvalidStateError):
        item.future.set_exception(error)
