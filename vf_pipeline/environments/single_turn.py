"""One question, one answer."""

from typing import Any

from vf_pipeline.environments.multi_turn import MultiTurnEnv
from vf_pipeline.types import Messages, State


class SingleTurnEnv(MultiTurnEnv):
    """A MultiTurnEnv that ends after the model's first turn.

    Args:
        **kwargs: those of ``Environment``.

    Example:
        >>> import asyncio
        >>> from dataclasses import asdict
        >>> import vf_pipeline as vf
        >>> def exact(completion, answer):
        ...     return float(completion[-1]["content"] == answer)
        >>> env = vf.SingleTurnEnv(
        ...     dataset=[{"question": "What comes after 41?", "answer": "42"}],
        ...     system_prompt="Answer with a number.",
        ...     rubric=vf.Rubric([exact]),
        ... )
        >>> [example] = env.examples("eval")
        >>> example.prompt[0]["role"], example.prompt[1]["content"]
        ('system', 'What comes after 41?')
        >>> state = asyncio.run(env.rollout(asdict(example), vf.FakeClient(["42"]), "fake"))
        >>> asyncio.run(env.rubric.score(state)).reward
        1.0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **kwargs)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return nothing: there is no second turn."""
        return [] if isinstance(messages, list) else ""
