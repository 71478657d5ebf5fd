"""The plain parser: the whole text is the answer, after an optional extraction function."""

from collections.abc import Callable
from typing import Any

from vf_pipeline.types import Message, Messages


def identity(text: str) -> Any:
    """Return the text as it is."""
    return text


def message_text(message: Message) -> str:
    """Return a message's text: its content, or the text parts of it joined; "" without any."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


class Parser:
    """Takes the answer out of what a model wrote.

    Args:
        extract_fn: what is done to the text in the end, such as taking what stands in a box.
    """

    def __init__(self, extract_fn: Callable[[str], Any] = identity) -> None:
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return what stands in one text."""
        return self.extract_fn(text)

    def parse_answer(self, completion: Messages) -> Any:
        """Return the answer of a completion: of the text itself, or of the last assistant message.

        Returns:
            The parsed answer; None when no assistant message is there.
        """
        if isinstance(completion, str):
            return self.parse(completion)
        replies = self.get_assistant_messages(completion)
        return self.parse(message_text(replies[-1])) if replies else None

    def get_assistant_messages(self, completion: Messages) -> list[Message]:
        """Return the assistant's messages of a completion."""
        return _by_role(completion, "assistant")

    def get_system_messages(self, completion: Messages) -> list[Message]:
        """Return the system messages of a completion."""
        return _by_role(completion, "system")

    def get_user_messages(self, completion: Messages) -> list[Message]:
        """Return the user's messages of a completion."""
        return _by_role(completion, "user")

    def get_tool_messages(self, completion: Messages) -> list[Message]:
        """Return the tools' messages of a completion."""
        return _by_role(completion, "tool")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function for the form of a completion; here every form is right."""

        def format_reward(completion: Messages) -> float:
            return 1.0

        return format_reward

    def assistant_texts(self, completion: Messages) -> list[str]:
        """Return the texts the model wrote: one for plain text, one for each assistant message."""
        if isinstance(completion, str):
            return [completion]
        return [message_text(message) for message in self.get_assistant_messages(completion)]


def _by_role(completion: Messages, role: str) -> list[Message]:
    if isinstance(completion, str):
        return []
    return [message for message in completion if message.get("role") == role]
