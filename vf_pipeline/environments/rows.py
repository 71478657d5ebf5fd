"""The column rules: from the rows of a dataset to examples that can be played."""

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import ConfigError
from vf_pipeline.types import Example, Info, Message, Messages

Row = dict[str, Any]


def read_rows(dataset: Any, name: str) -> list[Row]:
    """Return the rows of a ``datasets.Dataset`` or of a list of dicts.

    Raises:
        ConfigError: it is neither; ``name`` says which argument it was.
    """
    if isinstance(dataset, Mapping):
        raise ConfigError(f"{name} is a dict of splits {sorted(dataset)}", f"{name}=data['train']")
    sized = isinstance(dataset, Iterable) and isinstance(dataset, Sized)
    if isinstance(dataset, str) or not sized:
        kind = type(dataset).__name__
        raise ConfigError(f"{name} is a {kind}", "give a datasets.Dataset or a list of dicts")
    rows: list[Row] = []
    for row in dataset:
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"row {len(rows)} of {name} is a {type(row).__name__}", "each row is a dict"
            )
        rows.append(dict(row))
    return rows


def content_digest(prompt: Messages, answer: str, task: str, info: Info) -> str:
    """Return the digest of what an example is, whatever its place in a dataset."""
    return storage.digest_json({"prompt": prompt, "answer": answer, "task": task, "info": info})


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How prompts are built: what stands before the question of every row."""

    system_prompt: str | None = None
    few_shot: tuple[Message, ...] = ()
    message_type: str = "chat"

    def example(self, row: Row, ordinal: int) -> Example:
        """Return one row as an example.

        Raises:
            ConfigError: the row lacks a column, or a column has the wrong type.
        """
        prompt = self.prompt(row, ordinal)
        answer = _text(row.get("answer"))
        task = _text(row.get("task")) or "default"
        info = _info(row.get("info"), ordinal)
        digest = content_digest(prompt, answer, task, info)
        return Example(ordinal, prompt, answer, task, info, digest)

    def prompt(self, row: Row, ordinal: int) -> Messages:
        """Return a row's prompt: its ``prompt`` column, or one made of its ``question``.

        A chat prompt without a system message gets the environment's, and the few-shot messages
        behind it. A completion prompt is text and stays as it is.
        """
        given = row.get("prompt")
        if self.message_type == "completion":
            if not isinstance(given, str):
                raise _bad_row(ordinal, row, "message_type 'completion' needs text in 'prompt'")
            return given
        if given is None:
            question = row.get("question")
            if question is None:
                raise _bad_row(ordinal, row, "it has neither 'prompt' nor 'question'")
            given = question
        if isinstance(given, str) or row.get("prompt") is None:
            return self.frame([{"role": "user", "content": given}])
        return self.frame(_messages(given, row, ordinal))

    def frame(self, messages: list[Message]) -> list[Message]:
        """Return messages with the system prompt and the few-shot messages before them."""
        head = 0
        while head < len(messages) and messages[head].get("role") == "system":
            head += 1
        system = messages[:head]
        if not system and self.system_prompt:
            system = [{"role": "system", "content": self.system_prompt}]
        # Copies: environments may write into the messages of their state.
        return [*system, *(dict(shot) for shot in self.few_shot), *messages[head:]]


def insert_shots(prompt: Messages, shots: Sequence[Message]) -> Messages:
    """Return a prompt with worked examples between its system messages and the rest.

    Raises:
        ConfigError: the prompt is plain text, which has no such place.
    """
    if not shots:
        return prompt
    if isinstance(prompt, str):
        raise ConfigError("worked examples need chat prompts, this one is text", "ask for 0 shots")
    head = 0
    while head < len(prompt) and prompt[head].get("role") in ("system", "developer"):
        head += 1
    return [*prompt[:head], *shots, *prompt[head:]]


def _messages(given: Any, row: Row, ordinal: int) -> list[Message]:
    listed = given if isinstance(given, list | tuple) else []
    if not listed or not all(isinstance(m, Mapping) and "role" in m for m in listed):
        raise _bad_row(ordinal, row, "'prompt' is neither text nor a list of chat messages")
    # Arrow gives every message every key: the absent ones come back as None.
    return [{k: v for k, v in m.items() if v is not None or k == "content"} for m in listed]


def _info(given: Any, ordinal: int) -> Info:
    if isinstance(given, str):
        try:
            given = json.loads(given) if given else {}
        except ValueError:
            raise ConfigError(f"'info' of row {ordinal} is no JSON", "a dict or its JSON") from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"'info' of row {ordinal} is a {type(given).__name__}", "give a dict")
    return dict(given)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _bad_row(ordinal: int, row: Row, problem: str) -> ConfigError:
    return ConfigError(f"row {ordinal} of the dataset: {problem}", f"its columns: {sorted(row)}")
