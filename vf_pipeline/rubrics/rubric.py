"""Reward functions and their weights, and what becomes of a function that fails.

A function that raises, or returns what is no finite number, leaves the rollout unscored: its reward
is None and the reason is kept. It never counts as 0, which would be a wrong answer.
"""

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import ConfigError, RubricError
from vf_pipeline.parsers import Parser
from vf_pipeline.rubrics.identity import identity_of
from vf_pipeline.types import State

logger = logging.getLogger(__name__)

RewardFunc = Callable[..., Any]
"""A reward function: takes what it names, returns a number or an awaitable of one."""

OK = "ok"
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rubric made of one rollout.

    ``reward`` is the weighted sum, or None when a function with a weight has no value. ``metrics``
    holds each function's own value; ``outcomes`` says "ok" or the reason for each function.
    """

    reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)


class Rubric:
    """Scores a rollout as the weighted sum of reward functions.

    A function takes, by name, any of ``prompt``, ``completion``, ``answer``, ``state``, ``task``,
    ``info``, ``parser``, further columns of the dataset, and the objects added with
    ``add_class_object``; with ``**kwargs`` it takes them all. It may be a coroutine function.

    Args:
        funcs: the reward functions.
        weights: one weight for each; 0 makes a function a metric only. Default: all 1.
        parser: the parser that functions get.

    Raises:
        ConfigError: there are more or fewer weights than functions, or a weight is not finite.

    Example:
        >>> import asyncio
        >>> import vf_pipeline as vf
        >>> def right(completion, answer):
        ...     return float(completion[-1]["content"] == answer)
        >>> def characters(completion):
        ...     return len(completion[-1]["content"])
        >>> rubric = vf.Rubric([right, characters], weights=[1.0, 0.0])
        >>> state = {"completion": [{"role": "assistant", "content": "42"}], "answer": "42"}
        >>> outcome = asyncio.run(rubric.score(state))
        >>> outcome.reward, outcome.metrics
        (1.0, {'right': 1.0, 'characters': 2.0})

        A function that cannot judge leaves the rollout unscored, which is not 0:

        >>> outcome = asyncio.run(rubric.score({"completion": state["completion"]}))
        >>> outcome.reward is None
        True
        >>> outcome.outcomes
        {'right': "it asks for 'answer', which is not there (...)", 'characters': 'ok'}
    """

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.funcs: list[RewardFunc] = []
        self.weights: list[float] = []
        self.parser = parser if parser is not None else Parser()
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self._reported: set[str] = set()
        self._digest: tuple[Any, str] | None = None
        funcs = list(funcs or [])
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs):
            raise ConfigError(
                f"a rubric has {len(funcs)} functions and {len(weights)} weights",
                "give one weight for each function",
            )
        for func, weight in zip(funcs, weights, strict=True):
            self.add_reward_func(func, weight)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a reward function.

        Raises:
            ConfigError: the function cannot be called, or the weight is not finite.
        """
        if not callable(func):
            raise ConfigError(f"reward function {func!r} cannot be called", "give a function")
        if isinstance(weight, str) or not math.isfinite(weight):
            raise ConfigError(f"weight {weight!r} of {_plain_name(func)} is no finite number")
        self.funcs.append(func)
        self.weights.append(float(weight))

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """Add a function that is reported but, with weight 0, does not count."""
        self.add_reward_func(func, weight)

    def add_class_object(self, name: str, value: Any) -> None:
        """Make an object available to reward functions under a name."""
        self.class_objects[name] = value

    def get_reward_funcs(self) -> list[RewardFunc]:
        """Return the functions, in order."""
        return self.funcs

    def get_reward_weights(self) -> list[float]:
        """Return the functions' weights, in order."""
        return self.weights

    def get_reward_func_names(self) -> list[str]:
        """Return the functions' names, in order; a repeated name gets a number behind it."""
        names: list[str] = []
        for func in self.funcs:
            name, count = _plain_name(func), 2
            while name in names:
                name, count = f"{_plain_name(func)}_{count}", count + 1
            names.append(name)
        return names

    async def score(self, state: State) -> Outcome:
        """Return the reward of a finished rollout, with each function's value or reason."""
        reward: float | None = 0.0
        metrics: dict[str, float] = {}
        outcomes: dict[str, str] = {}
        names = self.get_reward_func_names()
        for name, func, weight in zip(names, self.funcs, self.weights, strict=True):
            try:
                metrics[name] = await self.call_reward_func(func, state)
                outcomes[name] = OK
            except Exception as error:
                outcomes[name] = self._report(name, error)
                reward = None if weight != 0.0 else reward
            if reward is not None and weight != 0.0:
                reward += weight * metrics[name]
        # Of finite values too, for a sum may overflow.
        if reward is not None and not math.isfinite(reward):
            outcomes["reward"], reward = "the weighted sum is not finite", None
        return Outcome(reward, metrics, outcomes)

    async def call_reward_func(self, func: RewardFunc, state: State) -> float:
        """Return one function's value for a rollout.

        Raises:
            RubricError: the function asks for what is not there, or returns no finite number.
        """
        value = func(**_arguments(func, self._available(state)))
        return _as_number(await value if inspect.isawaitable(value) else value)

    def digest(self) -> str:
        """Return what identifies the scoring: the functions' code and weights, and the parser."""
        # Every score names it, and reading source is slow: kept until a part is exchanged.
        parts = (tuple(self.funcs), tuple(self.weights), self.parser)
        if self._digest is None or self._digest[0] != parts:
            identity = [[identity_of(func) for func in self.funcs], identity_of(self.parser)]
            self._digest = (parts, storage.digest_json([*identity, self.weights]))
        return self._digest[1]

    def _available(self, state: State) -> dict[str, Any]:
        columns = state.get("input") or {}
        known = ("prompt", "completion", "answer", "task", "info", "example_id")
        given = {name: state[name] for name in known if name in state}
        # Later ones win: what a rollout made of a column, then what the rubric was given by name.
        return {**columns, **given, "state": state, **self.class_objects}

    def _report(self, name: str, error: Exception) -> str:
        text = str(error) if isinstance(error, RubricError) else f"{type(error).__name__}: {error}"
        # A function that fails for one rollout mostly fails for all: once is enough to see it.
        level = logging.DEBUG if name in self._reported else logging.WARNING
        self._reported.add(name)
        logger.log(level, "reward function %s has no value: %s", name, text, exc_info=error)
        return " ".join(text.split())[:_LONGEST_REASON]


def _arguments(func: RewardFunc, available: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(func).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wanted = available
    else:
        wanted = {p.name: available[p.name] for p in parameters if p.name in available}
    open_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for p in parameters:
        if p.name not in wanted and p.default is p.empty and p.kind not in open_kinds:
            raise RubricError(
                f"it asks for {p.name!r}, which is not there", f"there are {sorted(available)}"
            )
    return wanted


def _as_number(value: Any) -> float:
    # Arrays and tensors of one element give a Python number through item().
    if callable(getattr(value, "item", None)):
        value = value.item()
    numeric = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, str | bytes) or not numeric:
        raise RubricError(f"it returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise RubricError(f"it returned {number}, which is not a finite number")
    return number


def _plain_name(func: RewardFunc) -> str:
    inner = getattr(func, "func", func)
    name = getattr(inner, "__name__", type(inner).__name__)
    return "function" if name == "<lambda>" else str(name)
