"""The rollout worker: a process that plays groups for the trainer. Never imports torch.

    load environment and examples ─► wait until step k is allowed ─► play its groups ─► send them
                                            ▲                                              │
                                            └────────────── next step ◄────────────────────┘

It plays the groups of step k as soon as the trainer allows it, which is when the weights are at
most ``max_staleness`` versions behind. Every rollout is written to the journal when it is done;
when a run is resumed, steps after its checkpoint are played again, and the later record wins.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vf_pipeline.errors import TrainingError, VfError
from vf_pipeline.inference.client import Client
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.rollouts.journal import Journal, journal_settings
from vf_pipeline.tokens.client import TokenClient
from vf_pipeline.training.groups import Group, StepGroups
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.training.transports.messages import Allow, InFlight, PlayOrder, WorkerFailure
from vf_pipeline.training.worker.order import fill_step, prompt_at
from vf_pipeline.types import Example

log = logging.getLogger(__name__)


def run_worker(
    order: PlayOrder, commands: "Connection[Any, Any]", results: "Connection[Any, Any]"
) -> None:
    """Play until all steps are played or the trainer is gone. The entry point of the process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s")
    for noisy in ("httpx", "httpx2", "openai", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        asyncio.run(_Worker(order, commands, results).run())
    except VfError as error:
        results.send(WorkerFailure(error.message, error.hint))
    except Exception as error:
        log.exception("the rollout worker failed")
        results.send(WorkerFailure(f"the rollout worker failed: {type(error).__name__}: {error}"))


class _Worker:
    def __init__(
        self, order: PlayOrder, commands: "Connection[Any, Any]", results: "Connection[Any, Any]"
    ) -> None:
        self.order = order
        self.spec = order.spec
        self.settings = order.spec.grpo
        self.commands = commands
        self.results = results
        self.version = order.step
        self.in_flight = 0
        self.step = order.step
        self._allowed = order.step - 1
        self._changed = asyncio.Event()
        self._ours = frozenset({order.spec.digest, order.spec.model_digest})
        # One thread, so that messages keep their order and never block the event loop.
        self._sender = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        """Play step after step."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        try:
            env, examples = _load(self.spec)
            async with _open(self.spec) as (client, journal):
                position = self.order.position
                for step in range(self.order.step, self.settings.steps):
                    await self._until_allowed(step)
                    self.step = step

                    async def play(place: int) -> Group:
                        return await self._play(env, examples, client, journal, place)

                    played = await fill_step(
                        play, step, position, self.settings.groups, self.settings.max_refill
                    )
                    position = played.position
                    await self._send(played)
        finally:
            # What is being sent is sent whole: the last words come through the same pipe.
            self._sender.shutdown(wait=True)

    async def _play(
        self,
        env: Any,
        examples: Sequence[Example],
        client: TokenClient,
        journal: Journal,
        position: int,
    ) -> Group:
        from vf_pipeline.rollouts.job import group_jobs
        from vf_pipeline.rollouts.runner import play_group

        settings = self.settings
        epoch, index = prompt_at(self.spec.seed, position, len(examples))
        # The journal's keys: an example that comes again in a later epoch has other indices.
        first = epoch * settings.group_size
        jobs = group_jobs(
            examples[index],
            self.spec.served_model,
            {"temperature": settings.temperature, "max_tokens": settings.max_tokens},
            self.spec.seed + epoch,
            range(first, first + settings.group_size),
        )
        # Before the play: weights may be exchanged while it lasts, and where the server does not
        # say which it used, the older ones are the careful guess.
        version = self.version
        self.in_flight += settings.group_size
        await self._send(InFlight(self.step, self.in_flight))
        played = await play_group(env, jobs, client, on_result=lambda one: journal.append(*one))
        self.in_flight -= settings.group_size
        await self._send(InFlight(self.step, self.in_flight))
        return Group.of(position, played, version, self._ours)

    async def _until_allowed(self, step: int) -> None:
        # Unbounded on purpose: the trainer may take long, and its end ends this process.
        while self._allowed < step:
            self._changed.clear()
            await self._changed.wait()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                message = self.commands.recv()
            except (EOFError, OSError):
                # The trainer is gone; nobody is left to hear of it. Not sys.exit, which would end
                # this thread alone: rollouts in flight may take minutes.
                os._exit(1)
            # A sleeping loop does not notice an asyncio.Event that another thread sets.
            loop.call_soon_threadsafe(self._allow, message)

    def _allow(self, message: Allow) -> None:
        self._allowed = max(self._allowed, message.step)
        self.version = message.version
        self._changed.set()

    async def _send(self, message: StepGroups | InFlight) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._sender, self.results.send, message)


def _load(spec: TrainSpec) -> tuple[Any, list[Example]]:
    from vf_pipeline.data.files import read_examples
    from vf_pipeline.registry import load_environment

    env = load_environment(spec.environment.id, **spec.environment.args)
    examples = read_examples(Path(spec.examples_uri))
    if not examples:
        raise TrainingError(f"{spec.examples_uri} holds no examples", "raise data.train_examples")
    return env, examples


@asynccontextmanager
async def _open(spec: TrainSpec) -> AsyncIterator[tuple[TokenClient, Journal]]:
    """Open what a worker needs for its whole life: the client, and the journal."""
    from vf_pipeline.tokens.render import ChatRenderer

    settings = spec.grpo
    client = Client(
        Endpoint(spec.base_url, spec.served_model, spec.api_key_var),
        # A wave is never larger than a step's groups, so no play of it waits for another's end.
        max_concurrent=settings.groups * settings.group_size,
        # A longer request would be a stall to the trainer before it is an error here.
        request_timeout_s=settings.stall_timeout_s,
    )
    with open_journal(spec) as journal:
        async with client:
            yield TokenClient(client, ChatRenderer(spec.model_dir)), journal


def open_journal(spec: TrainSpec) -> Journal:
    """Open the journal of a training.

    That of another training in its place is thrown away, as its checkpoints are; what is no journal
    is moved aside.

    Raises:
        JournalError: another process writes it.
        StorageError: it cannot be written.
    """
    path = spec.work("rollouts.jsonl")
    settings = {"training": spec.digest, "environment": spec.environment.model_dump()}
    found = journal_settings(path)
    if found is None and path.exists() and path.stat().st_size:
        aside = path.with_name(f"{path.name}.damaged")
        log.warning("%s is no journal that can be read: moved to %s", path, aside)
        path.replace(aside)
    return Journal.open(path, settings, fresh=found not in (None, settings))
