"""Play many examples from a synchronous stage: client, journal, progress, and an early stop.

Evaluation and synthesis both play this way; they differ in what they make of the rollouts.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.inference.client import Client
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.progress import Progress, progress_bar
from vf_pipeline.rollouts.failures import error_for, failure_of
from vf_pipeline.rollouts.journal import Journal
from vf_pipeline.rollouts.runner import play
from vf_pipeline.types import Example, Failure, SamplingArgs, ScoredRollout, rollout_key

if TYPE_CHECKING:
    from vf_pipeline.environments.environment import Environment

T = TypeVar("T")

# This many failures and not one success: the cause is not the examples.
_HOPELESS = 20


def generate(
    env: "Environment",
    examples: Sequence[Example],
    endpoint: Endpoint,
    *,
    title: str,
    sampling: SamplingArgs,
    rollouts_per_example: int,
    max_concurrent: int,
    inference: InferenceSettings,
    seed: int,
    journal_path: Path,
    journal_settings: dict[str, Any],
    fresh: bool = False,
    client: Any = None,
) -> list[ScoredRollout]:
    """Return one scored rollout for each example and index, sorted; resumes its journal.

    Args:
        env: the environment that plays and scores.
        examples: what is played.
        endpoint: where the model is served.
        title: what the progress bar is called.
        sampling: sampling arguments of every request.
        rollouts_per_example: plays of each example.
        max_concurrent: most rollouts in flight.
        inference: time limits of requests.
        seed: seed of sampling.
        journal_path: where each result is written when it is done.
        journal_settings: what must not change between the journal's runs.
        fresh: start the journal over.
        client: used in place of one made for the endpoint.

    Raises:
        JournalError: the journal is locked, damaged, or of other settings.
        ProviderError, EnvironmentFault, RubricError: the server cannot be reached, or the first
            rollouts failed, all of them.
    """
    keys = {
        rollout_key(example.digest, example.example_id, index)
        for example in examples
        for index in range(rollouts_per_example)
    }
    with Journal.open(journal_path, journal_settings, fresh=fresh) as journal:
        done = len(keys & (journal.done() | journal.exhausted()))
        with progress_bar(title, len(keys), done) as bar:
            watch = _Watch(bar, hopeless=_HOPELESS if done == 0 else None)

            async def run() -> list[ScoredRollout]:
                async with _client_for(endpoint, inference, max_concurrent, client) as ready:
                    return await play(
                        env,
                        examples,
                        ready,
                        endpoint.model,
                        sampling=sampling,
                        rollouts_per_example=rollouts_per_example,
                        max_concurrent=max_concurrent,
                        seed=seed,
                        journal=journal,
                        on_result=watch,
                    )

            return run_async(run())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, also where this thread already runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failed: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(asyncio.run(work))
        # Also what asks to exit: it is raised again in the thread that called.
        except BaseException as error:
            failed.append(error)

    # asyncio.run() refuses to run beside a loop in one thread, and notebooks run one always.
    thread = threading.Thread(target=target, name="vf-play")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return outcome[0]


class _Watch:
    """Counts results for the progress bar, and ends the run when nothing ever succeeds."""

    def __init__(self, bar: Progress, hopeless: int | None) -> None:
        self.failures: list[Failure] = []
        self._bar = bar
        self._limit = hopeless
        self._rewards = 0.0
        self._scored = 0

    def __call__(self, played: ScoredRollout) -> None:
        failure = failure_of(played)
        if failure is not None:
            self.failures.append(failure)
        else:
            self._scored += 1
            self._rewards += played.score.reward or 0.0
        notes = [f"reward {self._rewards / self._scored:.3f}"] if self._scored else []
        if self.failures:
            notes.append(f"{len(self.failures)} failed")
        self._bar.advance(1, ", ".join(notes))
        if self._limit and not self._scored and len(self.failures) >= self._limit:
            raise error_for(
                self.failures,
                f"the first {len(self.failures)} rollouts all failed",
                "nothing more was played; remove the cause, then run the same command again",
            )


@asynccontextmanager
async def _client_for(
    endpoint: Endpoint, inference: InferenceSettings, max_concurrent: int, given: Any
) -> AsyncIterator[Any]:
    if given is not None:
        yield given
        return
    async with Client(
        endpoint,
        max_concurrent=max_concurrent,
        request_timeout_s=inference.request_timeout_s,
    ) as client:
        yield client
