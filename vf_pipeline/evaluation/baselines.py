"""The prompted baselines: what the base model can do with worked examples, or with more tokens.

A gain over a base whose answers are cut, or that was never shown the form of an answer, is partly
one that a prompt gives for nothing. These are the promptings that training is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vf_pipeline.configs import EvalSettings
from vf_pipeline.environments.rows import insert_shots
from vf_pipeline.types import Example

if TYPE_CHECKING:
    from vf_pipeline.environments.environment import Environment


@dataclass(frozen=True, slots=True)
class Prompting:
    """One way of asking a model: worked examples in front, and the most tokens of a turn."""

    shots: int
    max_tokens: int

    @property
    def label(self) -> str:
        """What it is called: "8-shot, 64 tokens"."""
        shots = f"{self.shots}-shot" if self.shots else "zero-shot"
        return f"{shots}, {self.max_tokens} token{'s' if self.max_tokens > 1 else ''}"

    @property
    def slug(self) -> str:
        """The label as the name of a folder: "8-shot-64-tokens"."""
        return self.label.replace(", ", "-").replace(" ", "-")


def plain_prompting(settings: EvalSettings) -> Prompting:
    """Return how every model of a chain is measured: no worked examples, the settings' tokens."""
    return Prompting(0, settings.max_tokens)


def prompted_baselines(settings: EvalSettings) -> list[Prompting]:
    """Return the other promptings of the base model, each once.

    A budget below the plain one is raised to it: cut answers would make a weak baseline. What is
    the plain prompting then is left out, for it is measured anyway.

    >>> tens = EvalSettings(max_tokens=10, baselines=({"max_tokens": 9}, {"shots": 3}))
    >>> [prompting.label for prompting in prompted_baselines(tens)]
    ['3-shot, 10 tokens']
    """
    asked = [
        Prompting(baseline.shots, max(baseline.max_tokens, settings.max_tokens))
        for baseline in settings.baselines
    ]
    plain = plain_prompting(settings)
    return [prompting for prompting in dict.fromkeys(asked) if prompting != plain]


def with_shots(
    env: "Environment", examples: Sequence[Example], count: int, source: Sequence[Example]
) -> list[Example]:
    """Return examples with worked ones of their task in front of the question.

    The digests stay those of the examples without them, so that measurements compare by example.

    Args:
        env: the environment of the examples.
        examples: what is played.
        count: worked examples of each task.
        source: where those are taken from, the first ones of each task; none of ``examples``.

    Raises:
        ConfigError: a task has too few in the source, or its prompts are plain text.
    """
    # Once a task, not once an example: all of a task see the same ones, as one prefix for the
    # engine.
    shots = {task: env.shots(task, count, source) for task in {e.task for e in examples}}
    return [
        replace(example, prompt=insert_shots(example.prompt, shots[example.task]))
        for example in examples
    ]
