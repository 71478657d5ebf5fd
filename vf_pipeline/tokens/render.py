"""Conversations as token ids, by the model's own chat template.

``extend`` never tokenizes what the model sampled: it appends the ids of what the template puts
behind an assistant's turn. The ids that were sampled stay the ids that are trained on.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.tokens.tokenizer import ChatTokenizer
from vf_pipeline.types import Message

# Letters and digits: no template trims or escapes them, and nobody says this by chance.
_MARK = "vf0assistant0text0vf"
# Templates may refuse a conversation that begins with the assistant.
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
        # Now, not at the first rollout: whoever makes a renderer has chats to render.
        self._tokenizer.template()
        self.eos_ids = self._tokenizer.eos_ids

    def render(self, messages: Sequence[Message], tools: Any = None) -> list[int]:
        """Return the ids of a conversation, with the template's generation prompt at the end.

        Raises:
            ConfigError: the template refuses these messages.
        """
        return self._tokenizer.render(messages, tools)

    def extend(self, previous_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """Return the ids of the next turn's prompt: those so far, then the template's suffix.

        Args:
            previous_ids: the previous prompt's ids and the ids sampled for it.
            new_messages: what came after the assistant's turn: user or tool messages.

        Raises:
            ConfigError: the template refuses these messages, or rewrites what came before.
        """
        ids = list(previous_ids)
        # Encoded by itself: joined to the text before, its first token could merge with what was
        # sampled.
        suffix = self._tokenizer.encode(self._behind_mark(new_messages, generate=True))
        return ids + suffix[_overlap(ids, suffix, len(self._closing_ids)) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self._tokenizer.decode(ids)

    @cached_property
    def _closing_ids(self) -> list[int]:
        return self._tokenizer.encode(self._behind_mark([], generate=False))

    def _behind_mark(self, new_messages: Sequence[Message], generate: bool) -> str:
        """Return what the template puts behind an assistant's text: its closing, then the rest."""
        answer = {"role": "assistant", "content": _MARK}
        # No tools: they stand in front of the mark, and what is in front is cut off.
        text = self._tokenizer.text([_QUESTION, answer, *new_messages], generate=generate)
        if _MARK not in text:
            raise ConfigError(
                f"the chat template in {self.model_dir} drops an assistant's earlier turns",
                "such a model can only be trained on one-turn rollouts",
            )
        return text[text.rindex(_MARK) + len(_MARK) :]


def _overlap(ids: list[int], suffix: list[int], longest: int) -> int:
    """Return how many ids of the turn's closing were sampled already (its end token, mostly)."""
    # The longest first: an answer cut by its limit has none of the closing, one that stopped has
    # its end token but not the newline behind it.
    for count in range(min(longest, len(ids), len(suffix)), 0, -1):
        if ids[-count:] == suffix[:count]:
            return count
    return 0
