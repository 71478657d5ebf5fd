"""Plays jobs: bounded, in order, each result written down when it is done.

A bad rollout is data: what fails in the server or in an environment becomes a ``Failure``. Only
where no rollout could succeed (nobody at the address, a refused key) does a run end at once.
"""

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from vf_pipeline.errors import AuthError, ProviderError, UnreachableError, VfError
from vf_pipeline.inference.chat import ChatClient
from vf_pipeline.rollouts.group_request import GroupRequest, RolloutClient
from vf_pipeline.rollouts.job import RolloutJob, group_jobs
from vf_pipeline.rollouts.journal import Journal, read_journal
from vf_pipeline.rollouts.record import failed_rollout, rollout_from_state
from vf_pipeline.types import Example, Failure, SamplingArgs, Score, ScoredRollout

OnResult = Callable[[ScoredRollout], None]

ROLLOUT_TIMEOUT_S = 1800.0
"""Longest duration of one rollout with its scoring, where nothing else is said, in seconds."""

_HOPELESS = (AuthError, UnreachableError)
_LONGEST_MESSAGE = 2000

logger = logging.getLogger(__name__)


async def play_group(
    env: Any,
    jobs: Sequence[RolloutJob],
    client: ChatClient,
    *,
    whole: bool = True,
    on_result: OnResult | None = None,
    rollout_timeout_s: float = ROLLOUT_TIMEOUT_S,
) -> list[ScoredRollout]:
    """Play the jobs of one example at once; the first turn is one request for all of them.

    Args:
        env: the environment: ``rollout()`` and ``rubric``.
        jobs: what is played, from ``group_jobs``.
        client: asks the model; a Client, a TokenClient, or what looks like one.
        whole: whether these are all plays of the example.
        on_result: called after each play; what it raises ends the group.
        rollout_timeout_s: longest duration of one rollout with its scoring, in seconds.

    Returns:
        A scored rollout for each job, in their order; failures are among them.
    """

    async def one(seat: RolloutClient, job: RolloutJob) -> ScoredRollout:
        played, _ = await _play(env, job, seat, rollout_timeout_s)
        if on_result is not None:
            on_result(played)
        return played

    async with _tasks() as tasks:
        shared = GroupRequest(client, jobs, whole, tasks)
        seats = [RolloutClient(shared, place, job) for place, job in enumerate(jobs)]
        running = [tasks.create_task(one(*both)) for both in zip(seats, jobs, strict=True)]
    return [task.result() for task in running]


async def play(
    env: Any,
    examples: Sequence[Example],
    client: ChatClient,
    model: str,
    *,
    sampling: SamplingArgs,
    rollouts_per_example: int,
    max_concurrent: int,
    seed: int,
    journal: Journal | None = None,
    on_result: OnResult | None = None,
    rollout_timeout_s: float = ROLLOUT_TIMEOUT_S,
) -> list[ScoredRollout]:
    """Play all examples, as often as asked, without what the journal has already.

    Groups start in the order of the examples. Cancelling ends all rollouts in flight; what was
    done by then is in the journal.

    Args:
        env: the environment: ``rollout()`` and ``rubric``.
        examples: what is played.
        client: asks the model; a Client, a TokenClient, or what looks like one.
        model: name of the model at the server.
        sampling: sampling arguments; a seed among them takes the place of ``seed``.
        rollouts_per_example: plays of each example.
        max_concurrent: most rollouts in flight.
        seed: seed of the run.
        journal: where results are written as soon as they are there, and what is skipped.
        on_result: called after each play of this run; what it raises ends the run.
        rollout_timeout_s: longest duration of one rollout with its scoring, in seconds.

    Returns:
        A scored rollout for each play, those of earlier runs included, sorted by example and
        index; failures are among them.

    Raises:
        AuthError: the key was refused before anything succeeded.
        UnreachableError: nobody answered before anything succeeded.
        StorageError: the journal could not be written.
    """
    plays = range(rollouts_per_example)
    groups = [group_jobs(example, model, sampling, seed, plays) for example in examples]
    finished = set() if journal is None else journal.done() | journal.exhausted()
    waiting = [[job for job in group if job.key not in finished] for group in groups]
    results: list[ScoredRollout] = []
    succeeded = False

    async def work(seats: Iterator[tuple[RolloutJob, RolloutClient]]) -> None:
        nonlocal succeeded
        # One plain iterator for all workers: next() does not await, so no job is handed out twice,
        # and groups start in their order.
        for job, seat in seats:
            played, error = await _play(env, job, seat, rollout_timeout_s)
            # After one success the address and the key are right, and this is a failure like
            # others.
            if isinstance(error, _HOPELESS) and not succeeded:
                raise error
            succeeded = succeeded or played.rollout.error is None
            if journal is None:
                results.append(played)
            else:
                journal.append(*played)
            if on_result is not None:
                on_result(played)

    async with _tasks() as tasks:
        seats = _seats(waiting, rollouts_per_example, client, tasks)
        for _ in range(min(max_concurrent, sum(len(group) for group in waiting))):
            tasks.create_task(work(seats))
    if journal is not None:
        keys = {job.key for group in groups for job in group}
        return [played for played in read_journal(journal.path) if played.key in keys]
    return sorted(results, key=lambda played: (played.rollout.example_id, played.rollout.index))


def _seats(
    groups: list[list[RolloutJob]], size: int, client: ChatClient, tasks: asyncio.TaskGroup
) -> Iterator[tuple[RolloutJob, RolloutClient]]:
    """Yield each job with the client it sees; those of one example share their first turn."""
    for jobs in groups:
        if jobs:
            # Made when a worker gets there, so that a run of many examples holds few of them. A
            # group may then be spread over time: its answer waits for those that start later.
            shared = GroupRequest(client, jobs, len(jobs) == size, tasks)
            for place, job in enumerate(jobs):
                yield job, RolloutClient(shared, place, job)


async def _play(
    env: Any, job: RolloutJob, client: RolloutClient, timeout_s: float
) -> tuple[ScoredRollout, BaseException | None]:
    """Return a scored rollout, and the error that ended it."""
    started = time.monotonic()
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            state = await env.rollout(
                job.input(), client, job.model, sampling_args=copy.deepcopy(job.sampling)
            )
            rollout = rollout_from_state(job.example, job.index, state, started)
            return ScoredRollout(rollout, await _score(env.rubric, state, rollout.key)), None
    # What an environment may raise: sys.exit() in a tool, a cancelled task of its own. Neither is
    # ours. KeyboardInterrupt is, and passes.
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if _cancelled(error):
            raise
        # Only our own limit makes it a rollout that took too long: an environment's request may
        # time out as well.
        failure = _explain(error, timeout_s if limit.expired() else None)
        logger.debug("rollout %s failed", job.key, exc_info=error)
        rollout = failed_rollout(job.example, job.index, failure, started)
        outcome = f"no score: {failure.boundary} error {failure.kind}"
        score = Score(rollout.key, None, outcomes={"rollout": outcome})
        return ScoredRollout(rollout, score), error


def _cancelled(error: BaseException) -> bool:
    """Whether we are being cancelled; an environment may raise CancelledError for itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _score(rubric: Any, state: Any, key: str) -> Score:
    """Return a rollout's score; a rubric that fails leaves it unscored, never at 0."""
    digest = _rubric_digest(rubric)
    try:
        outcome = await rubric.score(state)
    except Exception as error:
        text = f"error: {type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
        return Score(key, None, outcomes={"rubric": text}, rubric=digest)
    metrics, outcomes = dict(outcome.metrics), dict(outcome.outcomes)
    return Score(key, outcome.reward, metrics, outcomes, rubric=digest)


def _rubric_digest(rubric: Any) -> str:
    try:
        return str(rubric.digest())
    except Exception:
        logger.warning("the rubric has no digest", exc_info=True)
        return ""


def _explain(error: BaseException, expired_after_s: float | None) -> Failure:
    if expired_after_s is not None:
        text = f"the rollout took longer than {expired_after_s:g} s"
        return Failure("environment", "TimeoutError", text)
    # Environments may be given the SDK's own client: its errors are the server's as well.
    from_sdk = type(error).__module__.partition(".")[0] == "openai"
    boundary = isinstance(error, ProviderError) or from_sdk
    text = str(error)[:_LONGEST_MESSAGE]
    return Failure("provider" if boundary else "environment", type(error).__name__, text)


@asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group whose first error comes out as itself, not as a group."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        failure = _first(group)
    # Outside the except block, or the group would hang on it as its context.
    if failure is not None:
        raise failure


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop(0)
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    # Several may have failed before the group ended; ours come with a remedy.
    return next((leaf for leaf in leaves if isinstance(leaf, VfError)), leaves[0])
