"""Decorators for an environment's methods: when a rollout stops, what is tidied up after it."""

import inspect
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast, overload

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__vf_hook__"


class Hook:
    """A decorator, with or without a priority: ``@stop`` or ``@stop(priority=10)``.

    Hooks with a higher priority run first, equal ones by name. An override of a hook stays one.
    """

    def __init__(self, kind: str, doc: str) -> None:
        self.kind = kind
        self.__doc__ = doc

    @overload
    def __call__(self, func: F) -> F: ...

    @overload
    def __call__(self, func: None = None, *, priority: int = 0) -> Callable[[F], F]: ...

    def __call__(self, func: F | None = None, *, priority: int = 0) -> F | Callable[[F], F]:
        """Mark a method as a hook of this kind."""

        def mark(method: F) -> F:
            setattr(method, _MARK, (self.kind, priority))
            return method

        return mark if func is None else mark(func)

    def collect(self, owner: object) -> list[Callable[..., Any]]:
        """Return the owner's bound methods that are hooks of this kind, in the order they run."""
        return [
            getattr(owner, name) for name in _hook_names(self.kind, cast(Hashable, type(owner)))
        ]


@lru_cache(maxsize=256)
def _hook_names(kind: str, owner: type) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for cls in owner.__mro__:
        # Not getattr on the object, which would run its properties. The nearest class that marks a
        # name gives its priority; an override without a mark is still found by its base's.
        for name, member in vars(cls).items():
            marked, priority = getattr(member, _MARK, (None, 0))
            if marked == kind:
                found.setdefault(name, priority)
    return tuple(sorted(found, key=lambda name: (-found[name], name)))


stop = Hook("stop", "Marks ``method(state) -> bool``: the rollout ends when it returns true.")
cleanup = Hook("cleanup", "Marks ``method(state)``: runs after each rollout, however it ended.")
teardown = Hook("teardown", "Marks ``method()``: runs once when the environment is done with.")


async def maybe_await(value: Any) -> Any:
    """Return a value, or what it gives when it is awaited: hooks may be coroutines or not."""
    return await value if inspect.isawaitable(value) else value
