"""What environments are handed: the protocol of a chat client."""

from typing import Any, Protocol


class ChatClient(Protocol):
    """Looks like ``openai.AsyncOpenAI`` where environments touch it.

    ``client.chat.completions.create(model=…, messages=…, **sampling)`` answers with a
    ``ChatCompletion``, ``client.completions.create(model=…, prompt=…, **sampling)`` with a
    ``Completion``. ``Client``, ``TokenClient``, ``RolloutClient``, the SDK's own client and
    ``FakeClient`` are such clients.
    """

    @property
    def chat(self) -> Any:
        """The door to chats: ``chat.completions.create``."""

    @property
    def completions(self) -> Any:
        """The door to plain texts: ``completions.create``."""
