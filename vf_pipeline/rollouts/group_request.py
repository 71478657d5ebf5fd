"""A group's first turn as one request: its prompt is computed once, and sampled n times.

Every rollout of the group gets a ``RolloutClient``, which looks like the client that it stands
for. Its first call waits for the one request and returns a copy of the answer that holds only
this rollout's choice; all other calls go through, each with a seed of its own.
"""

import asyncio
import copy
import hashlib
from collections.abc import Awaitable
from typing import Any, Literal

from vf_pipeline.storage import digest_json

Kind = Literal["chat", "text"]


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**31) that depends on all parts, and on nothing else."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


class FirstTurn:
    """The request that the rollouts of one group share.

    Args:
        client: asks the server.
        size: number of rollouts, which is the number of choices asked for.
        seed: the request's seed.
        tasks: owns the request while it is under way.
    """

    def __init__(self, client: Any, size: int, seed: int, tasks: asyncio.TaskGroup) -> None:
        self.client = client
        self.size = size
        self._seed = seed
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
        if self._answer is None:
            self._asked = asked
            # A task of its own: a rollout that is given up must not take the others' answer along.
            self._answer = self._tasks.create_task(self._ask(kind, request))
        if asked != self._asked:
            return None
        result = await asyncio.shield(self._answer)
        if isinstance(result, Exception):
            raise result
        return pick_choice(result, place)

    async def _ask(self, kind: Kind, request: dict[str, Any]) -> Any:
        try:
            return await send(self.client, kind, {**request, "n": self.size, "seed": self._seed})
        except Exception as error:
            return error  # Raised again in every rollout that waits.


class RolloutClient:
    """One rollout's view of a client.

    Args:
        first: the group's shared first turn.
        place: the rollout's place in the group.
        seed: what the seeds of its own requests are derived from.
    """

    def __init__(self, first: FirstTurn, place: int, seed: int) -> None:
        self._first = first
        self._place = place
        self._seed = seed
        self._calls = 0
        # A token client needs a memory for each rollout: see TokenClient.for_rollout.
        own = getattr(first.client, "for_rollout", None)
        self._client = first.client if own is None else own()
        self.chat = _Door(completions=_Create(self, "chat"))
        self.completions = _Create(self, "text")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first.client, name)

    async def _create(self, kind: Kind, request: dict[str, Any]) -> Any:
        call, self._calls = self._calls, self._calls + 1
        request.pop("seed", None)
        if request.get("n") in (None, 1):
            request.pop("n", None)
            if call == 0:
                answer = await self._first.answer(self._place, kind, request)
                if answer is not None:
                    self._remember(kind, request, answer)
                    return answer
        return await send(self._client, kind, {**request, "seed": derive_seed(self._seed, call)})

    def _remember(self, kind: Kind, request: dict[str, Any], answer: Any) -> None:
        remember = getattr(self._client, "remember", None)
        if kind == "chat" and remember is not None:
            remember(request["messages"], answer, request.get("tools"))


class _Door:
    def __init__(self, completions: "_Create") -> None:
        self.completions = completions


class _Create:
    def __init__(self, client: RolloutClient, kind: Kind) -> None:
        self._client = client
        self._kind: Kind = kind

    def create(self, **request: Any) -> Awaitable[Any]:
        """Ask as the client underneath does."""
        return self._client._create(self._kind, request)


async def send(client: Any, kind: Kind, request: dict[str, Any]) -> Any:
    """Return a client's answer to a chat or a text request."""
    door = client.chat.completions if kind == "chat" else client.completions
    return await door.create(**request)


def pick_choice(response: Any, place: int) -> Any:
    """Return a copy of a response that holds only one of its choices, or None if it has too few.

    The usage is divided among the choices so that the parts add up to the whole: completion
    tokens by the choices' ids where these are known, everything else evenly.
    """
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
