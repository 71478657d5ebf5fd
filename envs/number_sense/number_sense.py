"""Short questions about the size and order of numbers; the answer is exact, and only the answer.

Every question is generated and asked once: a kind's questions are numbered, and a seeded sample of
the numbers is drawn, so that nothing is tried twice and an exhausted kind is known beforehand.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vf_pipeline as vf

SYSTEM_PROMPT = "Answer with just the result."
DEFAULT_KINDS = ("larger", "largest-of-three", "next", "last-of-three")

_LOW, _HIGH = 10, 100  # two digits
_NEXT_HIGH = 1000


@dataclass(frozen=True)
class Kind:
    """A kind of question: how many there are, and what the i-th one is."""

    size: int
    numbers: Callable[[int], tuple[int, ...]]
    question: str
    answer: Callable[[tuple[int, ...]], str]

    def row(self, name: str, index: int) -> dict[str, Any]:
        """Return the question with this index as a row of the dataset."""
        numbers = self.numbers(index)
        return {
            "question": self.question.format(*numbers),
            "answer": self.answer(numbers),
            "task": name,
        }


def _different(count: int) -> tuple[int, Callable[[int], tuple[int, ...]]]:
    """Return how many ordered choices of different two-digit numbers there are, and the i-th."""
    size = 1
    for taken in range(count):
        size *= _HIGH - _LOW - taken

    def choose(index: int) -> tuple[int, ...]:
        left = list(range(_LOW, _HIGH))
        numbers = []
        for _ in range(count):
            index, place = divmod(index, len(left))
            numbers.append(left.pop(place))
        return tuple(numbers)

    return size, choose


def _single(index: int) -> tuple[int, ...]:
    return (_LOW + index,)


KINDS = {
    "larger": Kind(
        *_different(2), "Which number is larger: {} or {}?", lambda numbers: str(max(numbers))
    ),
    "largest-of-three": Kind(
        *_different(3), "Which number is the largest: {}, {} or {}?", lambda n: str(max(n))
    ),
    "next": Kind(
        _NEXT_HIGH - _LOW,
        _single,
        "Which number comes right after {}?",
        lambda numbers: str(numbers[0] + 1),
    ),
    "last-of-three": Kind(
        *_different(3), "Which number stands last: {}, {}, {}?", lambda numbers: str(numbers[-1])
    ),
    "smaller": Kind(
        *_different(2), "Which number is smaller: {} or {}?", lambda numbers: str(min(numbers))
    ),
    "smallest-of-three": Kind(
        *_different(3), "Which number is the smallest: {}, {} or {}?", lambda n: str(min(n))
    ),
    "parity": Kind(
        _NEXT_HIGH - _LOW,
        _single,
        "Is {} even or odd?",
        lambda numbers: "odd" if numbers[0] % 2 else "even",
    ),
}


def exact_match(completion: vf.Messages, answer: str, state: vf.State, parser: vf.Parser) -> float:
    """Return 1 when the model ended its turn and wrote the answer and nothing else."""
    if state["stop_reason"] == "length":
        return 0.0
    return float(str(parser.parse_answer(completion) or "").strip() == answer)


def answer_length(completion: vf.Messages, parser: vf.Parser) -> float:
    """Return how many characters the model wrote: a metric, for answers in whole sentences."""
    return float(len(str(parser.parse_answer(completion) or "").strip()))


def load_environment(
    kinds: list[str] | None = None, num_examples: int = 3600, seed: int = 0
) -> vf.SingleTurnEnv:
    """Return the environment.

    Args:
        kinds: kinds of questions, which take turns; see ``KINDS``. Default: four of them.
        num_examples: number of questions, all different.
        seed: which questions are drawn.

    Raises:
        ConfigError: a kind is unknown or given twice, or has too few different questions.
    """
    return vf.SingleTurnEnv(
        dataset=generate_rows(list(DEFAULT_KINDS) if kinds is None else kinds, num_examples, seed),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([exact_match, answer_length], weights=[1.0, 0.0]),
        env_id="number-sense",
    )


def generate_rows(kinds: list[str], num_examples: int, seed: int) -> list[dict[str, Any]]:
    """Return different questions, the kinds taking turns."""
    _check(kinds, num_examples)
    drawn: dict[str, list[int]] = {}
    for place, name in enumerate(kinds):
        count = len(range(place, num_examples, len(kinds)))
        size = KINDS[name].size
        if count > size:
            raise vf.ConfigError(
                f"kind {name!r} has only {size} different questions, {count} are wanted",
                "lower num_examples, or leave the kind out",
            )
        drawn[name] = random.Random(f"{seed}:{name}").sample(range(size), count)
    rows = []
    for i in range(num_examples):
        name = kinds[i % len(kinds)]
        rows.append(KINDS[name].row(name, drawn[name][i // len(kinds)]))
    return rows


def _check(kinds: list[str], num_examples: int) -> None:
    if not isinstance(kinds, list | tuple) or not kinds:
        raise vf.ConfigError(f"kinds is {kinds!r}", f"give a list of {', '.join(KINDS)}")
    for name in kinds:
        if name not in KINDS:
            raise vf.UnknownNameError("kind of question", str(name), KINDS)
    if len(set(kinds)) < len(kinds):
        raise vf.ConfigError(f"a kind is given twice in {kinds!r}", "give each kind once")
    if num_examples < 1:
        raise vf.ConfigError(f"num_examples is {num_examples}", "give 1 or more")
