"""Conversations as token ids, by the model's own chat template.

``extend`` never tokenizes what the model sampled: it appends the ids of what the template puts
behind an assistant's turn. The ids that were sampled stay the ids that are trained on.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.inference.wire import plain
from vf_pipeline.tokens.tokenizer import ChatTokenizer, read_config
from vf_pipeline.types import Message

_MARK = "vf0assistant0text0vf"
_QUESTION: Message = {"role": "user", "content": "?"}


class ChatRenderer:
    """The chat template and the tokenizer of one model.

    Args:
        model_dir: folder with the tokenizer's files and its chat template; nothing is downloaded.

    Raises:
        ConfigError: the folder holds no tokenizer, or one without a chat template.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self.model_dir = Path(model_dir)
        self._tokenizer = ChatTokenizer.load(self.model_dir)
        self.eos_ids = _eos_ids(self.model_dir, self._tokenizer)

    def render(self, messages: Sequence[Message], tools: Any = None) -> list[int]:
        """Return the ids of a conversation, with the template's generation prompt at the end.

        Raises:
            ConfigError: the template refuses these messages.
        """
        return self._tokenizer.ids(self._text(messages, tools, generate=True))

    def extend(self, previous_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """Return the ids of the next turn's prompt: those so far, then the template's suffix.

        Args:
            previous_ids: the previous prompt's ids and the ids sampled for it.
            new_messages: what came after the assistant's turn: user or tool messages.

        Raises:
            ConfigError: the template refuses these messages, or rewrites what came before.
        """
        ids = list(previous_ids)
        suffix = self._tokenizer.ids(self._behind_mark(new_messages, generate=True))
        return ids + suffix[_overlap(ids, suffix, len(self._closing_ids)) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _closing_ids(self) -> list[int]:
        return self._tokenizer.ids(self._behind_mark([], generate=False))

    def _behind_mark(self, new_messages: Sequence[Message], generate: bool) -> str:
        """Return what the template puts behind an assistant's text: its closing, then the rest."""
        answer = {"role": "assistant", "content": _MARK}
        text = self._text([_QUESTION, answer, *new_messages], None, generate)
        if _MARK not in text:
            raise ConfigError(
                f"the chat template in {self.model_dir} drops an assistant's earlier turns",
                "such a model can only be trained on one-turn rollouts",
            )
        return text[text.rindex(_MARK) + len(_MARK) :]

    def _text(self, messages: Sequence[Message], tools: Any, generate: bool) -> str:
        return self._tokenizer.text([_for_template(m) for m in messages], tools, generate)


def _overlap(ids: list[int], suffix: list[int], longest: int) -> int:
    """Return how many ids of the turn's closing were sampled already (its end token, mostly)."""
    for count in range(min(longest, len(ids), len(suffix)), 0, -1):
        if ids[-count:] == suffix[:count]:
            return count
    return 0


def _for_template(message: Message) -> Message:
    """Return a message as templates expect it: plain, text instead of null, arguments as dict."""
    clean: Message = plain(message)
    if clean.get("content") is None:
        clean["content"] = ""
    for call in clean.get("tool_calls") or []:
        function = call.get("function", {})
        try:
            function["arguments"] = json.loads(function.get("arguments", "{}"))
        except (TypeError, ValueError):
            continue
    return clean


def _eos_ids(folder: Path, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Return all ids that end a turn: the tokenizer's, and those of the generation config."""
    own = tokenizer.token_id(tokenizer.special.get("eos_token", ""))
    found = set() if own is None else {own}
    listed = read_config(folder / "generation_config.json").get("eos_token_id")
    if listed is not None:
        found.update(listed if isinstance(listed, list) else [listed])
    return frozenset(found)
