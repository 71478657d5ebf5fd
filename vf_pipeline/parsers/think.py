"""The answer that follows the reasoning: what stands behind ``</think>``."""

from collections.abc import Callable
from typing import Any

from vf_pipeline.parsers.parser import Parser
from vf_pipeline.types import Messages

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser(Parser):
    """Requires reasoning: a text without ``</think>`` holds no answer."""

    def parse(self, text: str) -> Any:
        """Return what follows the last ``</think>``; the empty text when the tag is absent."""
        _, found, tail = text.rpartition(CLOSE)
        return self.extract_fn(tail.strip() if found else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return the share of assistant messages of the form ``<think>…</think>`` and answer."""

        def think_format_reward(completion: Messages) -> float:
            texts = self.assistant_texts(completion)
            return sum(map(_well_formed, texts)) / len(texts) if texts else 0.0

        return think_format_reward


def _well_formed(text: str) -> bool:
    text = text.strip()
    single = text.count(OPEN) == 1 and text.count(CLOSE) == 1
    return single and text.startswith(OPEN) and bool(text.partition(CLOSE)[2].strip())
