"""Measure a model: play the examples, and say how good it is and how sure that is."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_pipeline import storage
from vf_pipeline.configs import EvalSettings, InferenceSettings
from vf_pipeline.errors import ConfigError
from vf_pipeline.evaluation.statistics import (
    example_means,
    grouped_means,
    mean_interval,
    pass_at_k,
)
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.plain import null_if_unknown, plain
from vf_pipeline.rollouts.failures import error_for, failure_of
from vf_pipeline.rollouts.generate import generate
from vf_pipeline.tracking import Tracker
from vf_pipeline.types import EvalResult, Example, Interval, SamplingArgs, ScoredRollout, Usage

if TYPE_CHECKING:
    from vf_pipeline.environments.environment import Environment


def evaluate(
    env: "Environment",
    examples: Sequence[Example],
    endpoint: Endpoint,
    *,
    model_name: str,
    settings: EvalSettings,
    inference: InferenceSettings,
    seed: int,
    folder: Path,
    journal_settings: dict[str, Any],
    tracker: Tracker | None = None,
    sampling: SamplingArgs | None = None,
    client: Any = None,
    fresh: bool = False,
) -> EvalResult:
    """Return the model's reward with its interval; resumes where an earlier call stopped.

    Failed and unscored rollouts are counted and never enter a mean. ``folder`` receives
    ``rollouts.jsonl``, each rollout when it is done, and ``result.json``.

    Args:
        env: the environment that plays and scores.
        examples: what is played.
        endpoint: where the model is served.
        model_name: what the model is called in the result.
        settings: how often, how many at once, and how it is sampled.
        inference: time limits of requests.
        seed: seed of sampling.
        folder: where results are written.
        journal_settings: what must not change when the same folder is resumed.
        tracker: receives the numbers and ``result.json``.
        sampling: sampling arguments in place of the settings' temperature and tokens.
        client: used in place of one made for the endpoint.
        fresh: play everything again.

    Raises:
        ConfigError: there are no examples.
        ProviderError, EnvironmentFault, RubricError: too large a share failed, by the boundary
            that most of them crossed; ``result.json`` is written all the same.

    Example:
        >>> from pathlib import Path
        >>> import vf_pipeline as vf
        >>> env = vf.EchoEnvironment(num_examples=40)
        >>> def forgetful(prompt):
        ...     question = prompt[-1]["content"]
        ...     return "no idea" if question.endswith("9") else question
        >>> result = vf.evaluate(
        ...     env,
        ...     env.examples("eval"),
        ...     vf.Endpoint("http://127.0.0.1:8000/v1", "my-model"),
        ...     model_name="my-model",
        ...     settings=vf.EvalSettings(rollouts_per_example=1),
        ...     inference=vf.InferenceSettings(),
        ...     seed=0,
        ...     folder=Path("outputs/echo"),
        ...     journal_settings={"model": "my-model"},
        ...     client=vf.FakeClient(forgetful),
        ... )
        >>> result.reward.mean, result.counts["scored"], result.counts["errors"]
        (0.9, 40, 0)
        >>> print(f"{result.reward.low:.2f} … {result.reward.high:.2f}")
        0.76 … 0.96
        >>> rollout, score = vf.read_journal(result.rollouts_uri)[9]
        >>> rollout.completion[0]["content"], score.reward
        ('no idea', 0.0)
    """
    if not examples:
        raise ConfigError("there are no examples to evaluate on", "ask for at least one")
    if sampling is None:
        sampling = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
    started_at = time.monotonic()
    pairs = generate(
        env,
        examples,
        endpoint,
        title=f"evaluate {model_name}",
        sampling=sampling,
        rollouts_per_example=settings.rollouts_per_example,
        max_concurrent=settings.max_concurrent,
        inference=inference,
        seed=seed,
        journal_path=folder / "rollouts.jsonl",
        journal_settings=journal_settings,
        fresh=fresh,
        client=client,
    )
    result = summarize(
        pairs,
        env=env.env_id,
        model=model_name,
        duration_s=time.monotonic() - started_at,
        rollouts_uri=str(folder / "rollouts.jsonl"),
    )
    write_result(folder / "result.json", result)
    if tracker is not None:
        tracker.log_metrics(metrics_of(result))
        tracker.log_artifact(folder / "result.json")
    # After the result is written and tracked: what did succeed can be looked at.
    _check_failures(pairs, settings.max_error_fraction, folder)
    return result


def summarize(
    pairs: Sequence[ScoredRollout], *, env: str, model: str, duration_s: float, rollouts_uri: str
) -> EvalResult:
    """Return what rollouts and scores amount to; the order of completion changes no number.

    Each example's plays are averaged first, so that the interval is one over examples.
    """
    good = [pair for pair in pairs if failure_of(pair) is None]
    tasks = sorted({rollout.task for rollout, _ in pairs})
    return EvalResult(
        env=env,
        model=model,
        reward=mean_interval(list(example_means(good).values())),
        counts=_counts(pairs),
        per_task={task: _task_interval(good, task) for task in tasks},
        metrics=_metrics(good),
        usage=Usage(
            sum(rollout.usage.prompt_tokens for rollout, _ in pairs),
            sum(rollout.usage.completion_tokens for rollout, _ in pairs),
        ),
        duration_s=round(duration_s, 3),
        rollouts_uri=rollouts_uri,
    )


def write_result(path: Path, result: EvalResult) -> None:
    """Write a result as JSON; what is not known (NaN) is written as null."""
    storage.write_json(path, json_values(result))


def json_values(result: EvalResult) -> dict[str, Any]:
    """Return a result as JSON values, NaN as null."""
    values = plain(asdict(result), number=null_if_unknown)
    assert isinstance(values, dict)
    return values


def metrics_of(result: EvalResult) -> dict[str, float]:
    """Return a result's numbers under the names that a tracker gets; no NaN among them."""
    plays = max(result.counts["rollouts"], 1)
    values = {
        "reward/mean": result.reward.mean,
        "reward/se": result.reward.se,
        "reward/ci_low": result.reward.low,
        "reward/ci_high": result.reward.high,
        **{f"reward/{task}": interval.mean for task, interval in result.per_task.items()},
        **{
            name if "/" in name else f"metric/{name}": value
            for name, value in result.metrics.items()
        },
        "rollouts/count": float(result.counts["rollouts"]),
        "rollouts/error_frac": (result.counts["errors"] + result.counts["unscored"]) / plays,
        "rollouts/truncated_frac": result.counts["truncated"] / plays,
        "tokens/prompt": float(result.usage.prompt_tokens),
        "tokens/completion": float(result.usage.completion_tokens),
        "time/duration_s": result.duration_s,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _counts(pairs: Sequence[ScoredRollout]) -> dict[str, int]:
    boundaries = Counter(r.error.boundary for r, _ in pairs if r.error is not None)
    return {
        "examples": len({rollout.example_digest for rollout, _ in pairs}),
        "rollouts": len(pairs),
        "scored": sum(failure_of(pair) is None for pair in pairs),
        "errors": boundaries.total(),
        "unscored": sum(r.error is None and s.reward is None for r, s in pairs),
        "truncated": sum(rollout.truncated for rollout, _ in pairs),
        **{f"errors/{name}": boundaries[name] for name in sorted(boundaries)},
    }


def _task_interval(good: Sequence[ScoredRollout], task: str) -> Interval:
    means = example_means(pair for pair in good if pair[0].task == task)
    return mean_interval(list(means.values()))


def _metrics(good: Sequence[ScoredRollout]) -> dict[str, float]:
    """Return the mean of each metric, examples weighing the same, and pass@k of 0/1 rewards."""
    names = sorted({name for _, score in good for name in score.metrics})
    metrics = {}
    for name in names:
        means = grouped_means(
            (rollout.example_digest, score.metrics[name])
            for rollout, score in good
            if math.isfinite(score.metrics.get(name, math.nan))
        )
        if means:
            metrics[name] = math.fsum(means.values()) / len(means)
    return metrics | _pass_rates(good)


def _pass_rates(good: Sequence[ScoredRollout]) -> dict[str, float]:
    rewards: dict[str, list[float]] = {}
    for rollout, score in good:
        rewards.setdefault(rollout.example_digest, []).append(score.reward or 0.0)
    # pass@k counts successes; a reward in between is neither one nor none.
    if any(reward not in (0.0, 1.0) for group in rewards.values() for reward in group):
        return {}
    rates = {}
    k = 2
    while rewards and k <= max(len(group) for group in rewards.values()):
        values = [pass_at_k(len(group), int(sum(group)), k) for group in rewards.values()]
        # Never empty: the example with the most plays has at least k of them.
        known = [value for value in values if not math.isnan(value)]
        rates[f"pass_at/{k}"] = math.fsum(known) / len(known)
        k *= 2
    return rates


def _check_failures(pairs: Sequence[ScoredRollout], allowed: float, folder: Path) -> None:
    failures = [failure for pair in pairs if (failure := failure_of(pair)) is not None]
    if not failures or len(failures) <= allowed * len(pairs):
        return
    share = 100 * len(failures) / len(pairs)
    raise error_for(
        failures,
        f"{len(failures)} of {len(pairs)} rollouts failed ({share:.1f} %, allowed are "
        f"{100 * allowed:.1f} %)",
        f"the others are kept in {folder}: remove the cause, then run the same command again (a "
        "failed rollout is tried three times in all; --fresh starts over)",
    )
