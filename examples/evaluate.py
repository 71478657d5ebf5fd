"""Measure a model on an environment: how good it is, and how sure that is.

    python examples/evaluate.py                                    # a model that is made up
    python examples/evaluate.py http://127.0.0.1:8000/v1 MODEL     # one that is served there

Every rollout is written when it is played. Started again, the same command plays only what is
missing: nothing, where it came to its end.
"""

import sys
from pathlib import Path

import vf_pipeline as vf

MADE_UP = vf.Endpoint("http://127.0.0.1/v1", "made-up")


def knows_small_numbers(prompt: vf.Messages) -> str:
    """Return the sum, as a model would that cannot carry: 17 + 25 is 32."""
    a, b = (int(word) for word in prompt[-1]["content"].split(" + "))
    tens, ones = a // 10 + b // 10, (a % 10 + b % 10) % 10
    return str(10 * tens + ones)


def exact(completion: vf.Messages, answer: str) -> float:
    """Return 1 for the answer and nothing else."""
    return float(completion[-1]["content"].strip() == answer)


def load_environment() -> vf.SingleTurnEnv:
    """Return the task: sums of two numbers of two digits."""
    rows = [
        {
            "question": f"{a} + {b}",
            "answer": str(a + b),
            "task": "carry" if a % 10 + b % 10 > 9 else "no-carry",
        }
        for a in range(11, 99, 6)
        for b in range(12, 99, 7)
    ]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([exact]), env_id="sums")


def main(arguments: list[str]) -> None:
    """Evaluate, and print the estimates."""
    endpoint = vf.Endpoint(*arguments) if arguments else MADE_UP
    env = load_environment()
    # Greedy and short; what stands here must not change when a run is resumed.
    settings = vf.EvalSettings(rollouts_per_example=1, max_tokens=8, temperature=0.0)
    result = vf.evaluate(
        env,
        env.examples("eval"),
        endpoint,
        model_name=endpoint.model,
        settings=settings,
        inference=vf.InferenceSettings(engine="endpoint", base_url=endpoint.base_url),
        seed=0,
        folder=Path("outputs", "sums", endpoint.model.replace("/", "-")),
        journal_settings={"endpoint": endpoint.base_url, "eval": settings.model_dump()},
        client=None if arguments else vf.FakeClient(knows_small_numbers),
    )
    for task, estimate in {"all": result.reward, **result.per_task}.items():
        low, high = estimate.low, estimate.high
        print(f"{task:8}  {estimate.mean:.3f} (95 % CI {low:.3f} … {high:.3f}, n = {estimate.n})")
    # What failed, on either side, is counted and in no mean: an error is not a wrong answer.
    print(f"{result.counts['errors']} failed, {result.counts['unscored']} not scored")
    print(f"every rollout is in {result.rollouts_uri}")


if __name__ == "__main__":
    main(sys.argv[1:])
