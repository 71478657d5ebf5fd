"""For models that may reason or not: reasoning is dropped where there is any."""

from typing import Any

from vf_pipeline.parsers.parser import Parser
from vf_pipeline.parsers.think import CLOSE, OPEN


class MaybeThinkParser(Parser):
    """Reads the answer with or without reasoning before it.

    Reasoning that was cut off before ``</think>`` holds no answer: it is not taken for one.
    """

    def parse(self, text: str) -> Any:
        """Return what follows the last ``</think>``, or the text itself when it has no tag."""
        _, found, tail = text.rpartition(CLOSE)
        if OPEN in tail:
            tail = ""
        return self.extract_fn(tail.strip() if found or not tail else text)
