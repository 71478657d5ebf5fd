"""One question, one answer."""

from typing import Any

from vf_pipeline.environments.multi_turn import MultiTurnEnv
from vf_pipeline.types import Messages, State


class SingleTurnEnv(MultiTurnEnv):
    """A MultiTurnEnv that ends after the model's first turn.

    Args:
        **kwargs: those of ``Environment``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **kwargs)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return nothing: there is no second turn."""
        return [] if isinstance(messages, list) else ""
