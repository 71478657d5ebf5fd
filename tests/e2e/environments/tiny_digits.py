"""An environment that a tiny model can learn in seconds: answer with a digit of five or more."""

from typing import Any

import vf_pipeline as vf


def big_digit(completion: list[dict[str, Any]]) -> float:
    """Return 1.0 for one digit from 5 to 9, ended by the model itself."""
    text = str(completion[-1]["content"])
    return float(text in {"5", "6", "7", "8", "9"})


def load_environment(num_examples: int = 400) -> vf.SingleTurnEnv:
    """Return the environment; every question is another one."""
    rows = [
        {"question": f"Say a digit, number {n}.", "answer": str(5 + n % 5), "task": "digits"}
        for n in range(num_examples)
    ]
    return vf.SingleTurnEnv(
        dataset=rows, system_prompt="Say a digit.", rubric=vf.Rubric(funcs=[big_digit])
    )
