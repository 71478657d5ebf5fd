"""A group's first turn as one request: its prompt is computed once, and sampled n times.

    rollout 0 ─┐                          ┌─► choice 0 ─► rollout 0 goes on with requests of its own
    rollout 1 ─┼─► one request, n = 3 ────┼─► choice 1 ─► rollout 1
    rollout 2 ─┘                          └─► choice 2 ─► rollout 2

Every rollout of the group gets a ``RolloutClient``, which looks like the client that it stands
for. Its first call waits for the one request and returns a copy of the answer that holds only
this rollout's choice; all other calls go through, each with a seed of its own.
"""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, Literal

from vf_pipeline.inference.chat import ChatClient
from vf_pipeline.rollouts.job import RolloutJob, derive_seed, first_turn_seed
from vf_pipeline.storage import digest_json

Kind = Literal["chat", "text"]


class GroupRequest:
    """The request that the rollouts of one group share.

    Args:
        client: asks the server.
        jobs: the rollouts; as many choices are asked for.
        whole: whether these are all plays of the example.
        tasks: owns the request while it is under way.
    """

    def __init__(
        self, client: ChatClient, jobs: Sequence[RolloutJob], whole: bool, tasks: asyncio.TaskGroup
    ) -> None:
        self.client = client
        self.size = len(jobs)
        self._seed = first_turn_seed(jobs, whole)
        self._tasks = tasks
        self._asked: str | None = None
        self._answer: asyncio.Task[Any] | None = None

    async def answer(self, place: int, kind: Kind, request: dict[str, Any]) -> Any:
        """Return the answer for the rollout at ``place``, or None when it must ask by itself.

        That is so for a request that differs from the shared one, and where the server gave
        fewer choices than it was asked for.

        Raises:
            ProviderError: the shared request failed.
        """
        if self.size < 2:
            return None
        asked = digest_json([kind, request])
        # No await between this and create_task: of rollouts that arrive together, one asks.
        if self._answer is None:
            self._asked = asked
            # A task of its own: a rollout that is given up must not take the others' answer along.
            self._answer = self._tasks.create_task(self._ask(kind, request))
        if asked != self._asked:
            return None
        # Shielded: a rollout that is cancelled would cancel what it awaits, for all others too.
        result = await asyncio.shield(self._answer)
        if isinstance(result, Exception):
            raise result
        return pick_choice(result, place)

    async def _ask(self, kind: Kind, request: dict[str, Any]) -> Any:
        create = door(self.client, kind).create
        try:
            return await create(**request, n=self.size, seed=self._seed)
        except Exception as error:
            # As a value: a task of the group that raised would end every rollout of the run.
            return error  # Raised again in every rollout that waits.


class RolloutClient:
    """One rollout's view of a client.

    Args:
        shared: the group's shared first turn.
        place: the rollout's place in the group.
        job: the rollout; the seeds of its own requests derive from it.
    """

    def __init__(self, shared: GroupRequest, place: int, job: RolloutJob) -> None:
        self.shared = shared
        self.place = place
        self.seed = derive_seed(job.seed, job.index)
        self.calls = 0
        # A token client needs a memory for each rollout: see TokenClient.for_rollout.
        own = getattr(shared.client, "for_rollout", None)
        self.client = shared.client if own is None else own()
        self.completions = _Door(self, "text")
        self.chat = _Chat(_Door(self, "chat"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shared.client, name)


class _Chat:
    def __init__(self, completions: "_Door") -> None:
        self.completions = completions


class _Door:
    def __init__(self, rollout: RolloutClient, kind: Kind) -> None:
        self._rollout = rollout
        self._kind: Kind = kind

    async def create(self, **request: Any) -> Any:
        """Ask as the client underneath does; the first call of a rollout may be shared."""
        rollout, kind = self._rollout, self._kind
        # Before the first await: calls that an environment makes at once get seeds of their own.
        call, rollout.calls = rollout.calls, rollout.calls + 1
        # Seeds follow from the job alone: with one of an environment's, all plays would be alike.
        request.pop("seed", None)
        if request.get("n") in (None, 1):
            request.pop("n", None)
            answer = await rollout.shared.answer(rollout.place, kind, request) if not call else None
            if answer is not None:
                remember = getattr(rollout.client, "remember", None)
                if kind == "chat" and remember is not None:
                    # The request went through the shared client; this rollout's own must know its
                    # ids all the same, or its next turn would tokenize the answer anew.
                    remember(request["messages"], answer, request.get("tools"))
                return answer
        return await door(rollout.client, kind).create(
            **request, seed=derive_seed(rollout.seed, call)
        )


def door(client: Any, kind: Kind) -> Any:
    """Return the part of a client that answers chats or texts."""
    return client.chat.completions if kind == "chat" else client.completions


def pick_choice(response: Any, place: int) -> Any:
    """Return a copy of a response that holds only one of its choices, or None if it has too few.

    The usage is divided among the choices so that the parts add up to the whole: completion
    tokens by the choices' ids where these are known, everything else evenly.
    """
    # Servers may list choices as they are done; a rollout keeps its own by index.
    choices = sorted(response.choices, key=lambda choice: getattr(choice, "index", 0) or 0)
    if place >= len(choices):
        return None
    changes = {"choices": [_with(choices[place], {"index": 0})]}
    usage = getattr(response, "usage", None)
    if usage is not None:
        changes["usage"] = _usage_part(usage, choices, place)
    return _with(response, changes)


def _usage_part(usage: Any, choices: list[Any], place: int) -> Any:
    prompt = _even_part(getattr(usage, "prompt_tokens", 0) or 0, len(choices), place)
    total = getattr(usage, "completion_tokens", 0) or 0
    lengths = [len(getattr(choice, "token_ids", None) or ()) for choice in choices]
    exact = sum(lengths) == total
    completion = lengths[place] if exact else _even_part(total, len(choices), place)
    return _with(
        usage,
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    )


def _even_part(total: int, parts: int, place: int) -> int:
    return total // parts + (1 if place < total % parts else 0)


def _with(value: Any, changes: dict[str, Any]) -> Any:
    if hasattr(value, "model_copy"):
        return value.model_copy(update=changes)
    changed = copy.copy(value)
    for name, part in changes.items():
        setattr(changed, name, part)
    return changed
