"""What code is, as text that stays the same from process to process: for a rubric's digest."""

import functools
import hashlib
import inspect
import re
import textwrap
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

_PLAIN = (str, int, float, bool, bytes, type(None))
# Against objects that refer to each other in a circle.
_DEEPEST = 4


def identity_of(value: Any, depth: int = 0) -> Any:
    """Return a JSON value that identifies a function, an object or a plain value.

    A function is its source, its defaults and the plain values it closes over; an object is its
    class's source and its attributes. Functions that are called from there are not followed.
    """
    if isinstance(value, (*_PLAIN, re.Pattern)):
        return repr(value)
    if depth >= _DEEPEST:
        return type(value).__qualname__
    if isinstance(value, list | tuple):
        return [identity_of(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        # The order of a set of texts differs from process to process.
        return sorted(repr(identity_of(item, depth + 1)) for item in value)
    if isinstance(value, dict):
        return {str(key): identity_of(item, depth + 1) for key, item in value.items()}
    if inspect.ismethod(value):
        return [identity_of(value.__func__, depth + 1), identity_of(value.__self__, depth + 1)]
    if isinstance(value, FunctionType):
        return _function(value, depth)
    if isinstance(value, functools.partial):
        return identity_of([value.func, value.args, value.keywords], depth)
    if isinstance(value, BuiltinFunctionType):
        return value.__qualname__
    if isinstance(value, type):
        return [value.__qualname__, _source(value)]
    attributes = getattr(value, "__dict__", {})
    return [identity_of(type(value), depth + 1), identity_of(attributes, depth + 1)]


def _function(func: FunctionType, depth: int) -> list[Any]:
    cells = [_cell(cell) for cell in func.__closure__ or ()]
    closed = dict(zip(func.__code__.co_freevars, cells, strict=True))
    outside = [func.__defaults__, func.__kwdefaults__, closed]
    return [func.__qualname__, _source(func), identity_of(outside, depth + 1)]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the name is not bound yet
        return None


def _source(value: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        return _bytecode(code) if code is not None else ""


def _bytecode(code: CodeType) -> str:
    constants = [c if isinstance(c, _PLAIN) else type(c).__name__ for c in code.co_consts]
    text = repr((code.co_code, code.co_names, constants))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
