"""Plays examples: bounded, in order, each result written down when it is done.

A bad rollout is data: what fails in the server or in an environment becomes a ``Failure``. Only
where no rollout could succeed (nobody at the address, a refused key) does a run end at once.
"""

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from vf_pipeline.errors import AuthError, ProviderError, UnreachableError, VfError
from vf_pipeline.rollouts.group_request import FirstTurn, RolloutClient, derive_seed
from vf_pipeline.rollouts.journal import Journal, read_journal
from vf_pipeline.rollouts.record import failed_rollout, rollout_from_state
from vf_pipeline.types import Example, Failure, Rollout, SamplingArgs, Score, rollout_key

OnResult = Callable[[Rollout, Score], None]

_HOPELESS = (AuthError, UnreachableError)
_LONGEST_MESSAGE = 2000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Play:
    """One rollout that is to be played, and the client that it sees."""

    example: Example
    index: int
    client: RolloutClient


@dataclass(frozen=True, slots=True)
class _Table:
    """What is the same for all plays of a run."""

    env: Any
    model: str
    sampling: SamplingArgs
    seed: int
    timeout_s: float

    @classmethod
    def of(
        cls, env: Any, model: str, sampling: SamplingArgs, seed: int, timeout_s: float
    ) -> "_Table":
        """Return the table; a seed among the sampling arguments goes before the run's."""
        own = {key: value for key, value in sampling.items() if key != "seed"}
        given = sampling.get("seed")
        return cls(env, model, own, seed if given is None else int(given), timeout_s)


async def play_group(
    env: Any,
    example: Example,
    client: Any,
    model: str,
    sampling: SamplingArgs,
    n: int,
    seed: int,
    indices: Sequence[int] | None = None,
    *,
    rollout_timeout_s: float = 1800.0,
) -> list[tuple[Rollout, Score]]:
    """Play one example n times at once; the first turn is one request for all of them.

    Args:
        env: the environment: ``rollout()`` and ``rubric``.
        example: what is played.
        client: asks the model; a Client, a TokenClient, or what looks like one.
        model: name of the model at the server.
        sampling: sampling arguments; a seed among them takes the place of ``seed``.
        n: plays of a whole group.
        seed: seed of the run; the group's depends on it and on the example's content.
        indices: which of the n plays; all when None.
        rollout_timeout_s: longest duration of one rollout with its scoring, in seconds.

    Returns:
        A rollout and its score for each index, in their order; failures are among them.
    """
    table = _Table.of(env, model, sampling, seed, rollout_timeout_s)
    chosen = list(range(n)) if indices is None else list(indices)
    async with _tasks() as tasks:
        plays = _group_plays(example, client, chosen, n, table.seed, tasks)
        running = [tasks.create_task(_play(table, play)) for play in plays]
    return [task.result()[:2] for task in running]


async def play(
    env: Any,
    examples: Sequence[Example],
    client: Any,
    model: str,
    *,
    sampling: SamplingArgs,
    rollouts_per_example: int,
    max_concurrent: int,
    seed: int,
    journal: Journal | None = None,
    on_result: OnResult | None = None,
    rollout_timeout_s: float = 1800.0,
) -> list[tuple[Rollout, Score]]:
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
        on_result: called after each play of this run.
        rollout_timeout_s: longest duration of one rollout with its scoring, in seconds.

    Returns:
        A rollout and its score for each play, those of earlier runs included, sorted by example
        and index; failures are among them.

    Raises:
        AuthError: the key was refused before anything succeeded.
        UnreachableError: nobody answered before anything succeeded.
        StorageError: the journal could not be written.
    """
    table = _Table.of(env, model, sampling, seed, rollout_timeout_s)
    finished = set() if journal is None else journal.done() | journal.exhausted()
    wanted = [
        (example, [i for i in range(rollouts_per_example) if _key(example, i) not in finished])
        for example in examples
    ]
    results: list[tuple[Rollout, Score]] = []
    succeeded = False

    async def work(plays: Iterator[_Play]) -> None:
        nonlocal succeeded
        for one in plays:
            rollout, score, error = await _play(table, one)
            if isinstance(error, _HOPELESS) and not succeeded:
                raise error
            succeeded = succeeded or rollout.error is None
            if journal is None:
                results.append((rollout, score))
            else:
                journal.append(rollout, score)
            if on_result is not None:
                on_result(rollout, score)

    async with _tasks() as tasks:
        plays = _all_plays(wanted, client, rollouts_per_example, table.seed, tasks)
        for _ in range(min(max_concurrent, sum(len(indices) for _, indices in wanted))):
            tasks.create_task(work(plays))
    if journal is not None:
        keys = {_key(example, i) for example in examples for i in range(rollouts_per_example)}
        return [pair for pair in read_journal(journal.path) if pair[0].key in keys]
    return sorted(results, key=lambda pair: (pair[0].example_id, pair[0].index))


def _key(example: Example, index: int) -> str:
    return rollout_key(example.digest, example.example_id, index)


def _all_plays(
    wanted: list[tuple[Example, list[int]]],
    client: Any,
    size: int,
    seed: int,
    tasks: asyncio.TaskGroup,
) -> Iterator[_Play]:
    for example, indices in wanted:
        yield from _group_plays(example, client, indices, size, seed, tasks)


def _group_plays(
    example: Example,
    client: Any,
    indices: list[int],
    size: int,
    seed: int,
    tasks: asyncio.TaskGroup,
) -> list[_Play]:
    """Return the plays of one example, which share their first turn.

    A part of a group gets another seed than the whole: with the same one, a resumed group would
    repeat the samples that it has.
    """
    group_seed = derive_seed(seed, example.digest)
    whole = indices == list(range(size))
    first_seed = group_seed if whole else derive_seed(group_seed, "part", *indices)
    first = FirstTurn(client, len(indices), first_seed, tasks)
    return [
        _Play(example, index, RolloutClient(first, place, derive_seed(group_seed, index)))
        for place, index in enumerate(indices)
    ]


async def _play(table: _Table, play: _Play) -> tuple[Rollout, Score, BaseException | None]:
    """Return a rollout, its score, and the error that ended it."""
    example, started = play.example, time.monotonic()
    limit = asyncio.timeout(table.timeout_s)
    try:
        async with limit:
            state = await table.env.rollout(
                _rollout_input(example),
                play.client,
                table.model,
                sampling_args=copy.deepcopy(table.sampling),
            )
            rollout = rollout_from_state(example, play.index, state, started)
            return rollout, await _score(table, state, rollout.key), None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if _cancelled(error):
            raise
        failure = _explain(error, table.timeout_s if limit.expired() else None)
        logger.debug("rollout %s failed", _key(example, play.index), exc_info=error)
        rollout = failed_rollout(example, play.index, failure, started)
        outcome = f"no score: {failure.boundary} error {failure.kind}"
        return rollout, Score(rollout.key, None, outcomes={"rollout": outcome}), error


def _cancelled(error: BaseException) -> bool:
    """Whether we are being cancelled; an environment may raise CancelledError for itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _rollout_input(example: Example) -> dict[str, Any]:
    return {
        "prompt": copy.deepcopy(example.prompt),
        "answer": example.answer,
        "task": example.task,
        "info": copy.deepcopy(example.info),
        "example_id": example.example_id,
    }


async def _score(table: _Table, state: Any, key: str) -> Score:
    """Return a rollout's score; a rubric that fails leaves it unscored, never at 0."""
    rubric = table.env.rubric
    try:
        outcome = await rubric.score(state)
    except Exception as error:
        text = f"error: {type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
        return Score(key, None, outcomes={"rubric": text}, rubric=_rubric_digest(rubric))
    return Score(
        key,
        outcome.reward,
        dict(outcome.metrics),
        dict(outcome.outcomes),
        rubric=_rubric_digest(rubric),
    )


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
    return next((leaf for leaf in leaves if isinstance(leaf, VfError)), leaves[0])
