"""The one error tree, by the boundary that was crossed.

VfError                      something this project can explain
├── ConfigError              a setting is wrong                         exit 2
│   └── UnknownNameError     a name nobody knows, with "did you mean"   exit 2
├── PrerequisiteError        an extra, a tool or a file is missing      exit 4
├── StorageError             a file could not be read or written        exit 1
│   └── JournalError         a journal is locked, foreign or damaged    exit 1
├── ProviderError            the model's server failed                  exit 1
│   ├── OverlongPromptError  the prompt does not fit the context
│   ├── EmptyResponseError   the answer carries no choice
│   ├── MalformedResponseError  the answer is not what the protocol says
│   ├── RateLimitError       the server asks to slow down
│   ├── UnreachableError     nobody answers at the address
│   └── AuthError            the key is missing or refused
├── EnvironmentFault         code of an environment failed              exit 1
├── RubricError              a scorer failed                            exit 1
├── ProcessError             a child process died or never got ready    exit 1
├── TrainingError            training cannot go on                      exit 1
└── GateError                the gate was not passed                    exit 3
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class VfError(Exception):
    """An error with a cause and a remedy.

    Args:
        message: what happened and where, in one sentence.
        hint: what to do next; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(VfError):
    """A setting is wrong, or settings contradict each other."""

    exit_code = 2


class UnknownNameError(ConfigError):
    """A name that is not among the known ones.

    Args:
        kind: what the name stands for ("environment", "config key").
        name: the unknown name.
        known: all names that would have been right.
        hint: what to do when none of them is meant.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        listing = f"known: {', '.join(names)}" if names else "none is known here"
        advice = f"did you mean {close[0]!r}?" if close else listing
        super().__init__(f"unknown {kind} {name!r}", f"{advice}; {hint}" if hint else advice)


class PrerequisiteError(VfError):
    """Something that must be installed or present is missing."""

    exit_code = 4


class StorageError(VfError):
    """A file could not be read, written or published."""


class JournalError(StorageError):
    """A journal is held by another writer, was written under other settings, or is damaged."""


class ProviderError(VfError):
    """The model's server failed, or could not be reached."""


class OverlongPromptError(ProviderError):
    """The prompt does not fit into the model's context."""


class EmptyResponseError(ProviderError):
    """The server answered without a choice."""


class MalformedResponseError(ProviderError):
    """The server's answer does not follow the protocol."""


class RateLimitError(ProviderError):
    """The server asks to slow down, for longer than we wait."""


class UnreachableError(ProviderError):
    """No connection to the server: it does not run, or the address is wrong."""


class AuthError(ProviderError):
    """The key is missing, or the server refuses it."""


class EnvironmentFault(VfError):
    """Code of an environment raised."""


class RubricError(VfError):
    """A reward function raised, or returned what is no number."""


class ProcessError(VfError):
    """A child process died, or did not become ready in time."""


class TrainingError(VfError):
    """Training cannot go on."""


class GateError(VfError):
    """The trained model did not pass the gate."""

    exit_code = 3
