"""The rollout worker: a process that plays groups for the trainer. Never imports torch.

It plays the groups of step k as soon as the trainer allows it, which is when the weights are at
most ``max_staleness`` versions behind. Every rollout is appended to rollouts.jsonl; when a run is
resumed, steps after its checkpoint appear again there, and the later record wins.
"""

import asyncio
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from vf_pipeline.errors import TrainingError, VfError
from vf_pipeline.inference.client import Client
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.tokens.client import TokenClient
from vf_pipeline.training.groups import Group, StepGroups, fill_step, make_group, prompt_at
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.types import Example, Rollout, Score

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker plays, and where it starts: the step, and the position in the data."""

    spec: TrainSpec
    step: int
    position: int


@dataclass(frozen=True, slots=True)
class Allow:
    """Trainer to worker: steps up to ``step`` may be played; the engine serves ``version``."""

    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker to trainer: a group was started or finished; rollouts now in flight."""

    step: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Worker to trainer: why it ends."""

    message: str
    hint: str = ""


def run_worker(job: Job, commands: "Connection[Any, Any]", results: "Connection[Any, Any]") -> None:
    """Play until all steps are played or the trainer is gone. The entry point of the process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s")
    for noisy in ("httpx", "httpx2", "openai", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        asyncio.run(_Worker(job, commands, results).run())
    except VfError as error:
        results.send(Fault(error.message, error.hint))
    except Exception as error:
        log.exception("the rollout worker failed")
        results.send(Fault(f"the rollout worker failed: {type(error).__name__}: {error}"))


class _Worker:
    def __init__(
        self, job: Job, commands: "Connection[Any, Any]", results: "Connection[Any, Any]"
    ) -> None:
        self.job = job
        self.spec = job.spec
        self.settings = job.spec.grpo
        self.commands = commands
        self.results = results
        self.version = job.step
        self.in_flight = 0
        self.step = job.step
        self._allowed = job.step - 1
        self._changed = asyncio.Event()
        # One thread, so that messages keep their order and never block the event loop.
        self._sender = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        """Play step after step."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        env, examples = _load(self.spec)
        async with _open(self.spec) as (client, file):
            position = self.job.position
            for step in range(self.job.step, self.settings.steps):
                await self._until_allowed(step)
                self.step = step

                async def play(place: int) -> Group:
                    return await self._play(env, examples, client, file, place)

                played = await fill_step(
                    play, step, position, self.settings.groups, self.settings.max_refill
                )
                position = played.position
                await self._send(played)
        self._sender.shutdown(wait=True)

    async def _play(
        self,
        env: Any,
        examples: Sequence[Example],
        client: TokenClient,
        file: IO[str],
        position: int,
    ) -> Group:
        from vf_pipeline.rollouts.runner import play_group

        settings = self.settings
        epoch, index = prompt_at(self.spec.seed, position, len(examples))
        version = self.version
        self.in_flight += settings.group_size
        await self._send(Progress(self.step, self.in_flight))
        pairs = await play_group(
            env,
            examples[index],
            client,
            self.spec.served_model,
            {"temperature": settings.temperature, "max_tokens": settings.max_tokens},
            settings.group_size,
            self.spec.seed + epoch,
        )
        self.in_flight -= settings.group_size
        await self._send(Progress(self.step, self.in_flight))
        _append(file, self.step, position, pairs)
        return make_group(pairs, position, version, settings.scale_rewards)

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
                # The trainer is gone; nobody is left to hear of it.
                os._exit(1)
            loop.call_soon_threadsafe(self._allow, message)

    def _allow(self, message: Allow) -> None:
        self._allowed = max(self._allowed, message.step)
        self.version = message.version
        self._changed.set()

    async def _send(self, message: StepGroups | Progress) -> None:
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
async def _open(spec: TrainSpec) -> AsyncIterator[tuple[TokenClient, IO[str]]]:
    """Open what a worker needs for its whole life: the client, and the file of rollouts."""
    from vf_pipeline.tokens.render import ChatRenderer

    settings = spec.grpo
    client = Client(
        Endpoint(spec.base_url, spec.served_model, spec.api_key_var),
        max_concurrent=settings.groups * settings.group_size,
        request_timeout_s=settings.stall_timeout_s,
    )
    with spec.work("rollouts.jsonl").open("a", encoding="utf-8") as file:
        async with client:
            yield TokenClient(client, ChatRenderer(spec.model_dir)), file


def _append(
    file: IO[str], step: int, position: int, pairs: Sequence[tuple[Rollout, Score]]
) -> None:
    for rollout, score in pairs:
        record = {
            "step": step,
            "position": position,
            "rollout": asdict(rollout),
            "score": asdict(score),
        }
        file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    file.flush()
