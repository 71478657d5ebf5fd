"""Write an environment, and see it play before any model does.

    python examples/write_environment.py

``load_environment`` is all that ``vf-eval`` and the chain ask of an environment's module; ``main``
plays it against a client with scripted replies, as an environment's own tests do.
"""

import asyncio
from dataclasses import asdict

import vf_pipeline as vf
from vf_pipeline.testing import FakeClient

WORDS = ["level", "python", "noon", "reward"]

parser = vf.XMLParser(["reasoning", "answer"])


def is_right(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right answer; a function gets what it names among its arguments."""
    return float(parser.parse_answer(completion) == answer)


def words_of_reasoning(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return how much was reasoned; with weight 0 it is reported and does not count."""
    return float(len((parser.parse(completion[-1]["content"]).reasoning or "").split()))


def load_environment() -> vf.SingleTurnEnv:
    """Return the task: is a word the same backwards?"""
    rows = [
        {"question": f"Is {word!r} a palindrome?", "answer": "yes" if word == word[::-1] else "no"}
        for word in WORDS
    ]
    rubric = vf.Rubric(
        [is_right, parser.get_format_reward_func(), words_of_reasoning],
        weights=[1.0, 0.2, 0.0],
        parser=parser,
    )
    return vf.SingleTurnEnv(
        dataset=rows,
        system_prompt=f"Think, then answer yes or no, in this form:\n{parser.get_format_str()}",
        parser=parser,
        rubric=rubric,
        env_id="palindromes",
    )


async def main() -> None:
    """Play every example once, and print what the rubric makes of it."""
    replies = [
        parser.format(reasoning="level, read backwards: level", answer="yes"),
        parser.format(reasoning="it ends in n", answer="yes"),
        "<answer>yes</answer>",
        "I am not sure.",
    ]
    env, client = load_environment(), FakeClient(replies)
    for example in env.examples("eval"):
        state = await env.rollout(asdict(example), client, "scripted")
        outcome = await env.rubric.score(state)
        values = "  ".join(f"{name} {value:g}" for name, value in outcome.metrics.items())
        print(f"{example.prompt[-1]['content']:30} reward {outcome.reward:.2f} = {values}")


if __name__ == "__main__":
    asyncio.run(main())
