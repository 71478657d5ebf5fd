"""Gather what a chain's report shows, from the run directory alone."""

from collections.abc import Sequence

from vf_pipeline.evaluation.compare import Comparison
from vf_pipeline.evaluation.gains import Gains, Measured
from vf_pipeline.reports.page import (
    ChainReport,
    Gain,
    Measurement,
    SampleRollout,
    StageTime,
)
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import (
    Baselines,
    Evaluated,
    Prepared,
    StageOutputs,
    Synthesized,
    Trained,
)
from vf_pipeline.runs.stages import STAGES, typed_outputs
from vf_pipeline.training.metrics import read_metrics
from vf_pipeline.types import Messages, ScoredRollout

_CHOSEN = (
    "The best prompted base is chosen on the very examples that it is compared on. That favours "
    "it, so the gain over it is understated rather than overstated."
)


def chain_report(run: Run, verdict: Sequence[str], gains: Gains) -> ChainReport:
    """Return the report of a chain.

    Args:
        run: the run whose stages are done.
        verdict: the verdict's lines, the first one first.
        gains: the measured models and their comparisons, on the same examples.
    """
    facts, prepared = run.manifest.facts, run.prepared
    made = run.outputs("synthesize", Synthesized)
    return ChainReport(
        title=f"{run.config.name}: {run.config.environment.id}",
        verdict=verdict[0],
        passed=verdict[0].startswith("PASSED"),
        notes=list(verdict[1:]),
        stages=[
            StageTime(name, record.duration_s, stage_note(typed_outputs(name, record.outputs)))
            for name, record in run.manifest.stages.items()
            if name in STAGES
        ],
        measurements=measurements(gains),
        note=_CHOSEN if len(gains.bases) > 1 else "",
        gains=[
            _gain("trained − best prompted", gains.over_best),
            _gain("trained − base", gains.over_plain),
            _gain("SFT − base", gains.by_sft),
            _gain("GRPO − SFT", gains.by_grpo),
        ],
        reward_curve=reward_curve(run),
        funnel=made.funnel,
        samples=samples(gains.bases[0].pairs, gains.trained.pairs),
        settings=run.config.model_dump(),
        digests={
            "base model": prepared.model.digest,
            "SFT model": run.model("sft").digest,
            "trained model": run.model("grpo").digest,
            **{f"data: {name}": ref.digest for name, ref in prepared.data.items()},
            "SFT rows": made.rows.digest,
        },
        links={"Prefect": facts.get("prefect_url", ""), "MLflow": facts.get("mlflow_url", "")},
        bounded=gains.over_best.bounded,
    )


def stage_note(made: StageOutputs) -> str:
    """Return in a few words what a stage made; the verdict speaks for its own stage."""
    match made:
        case Prepared():
            return ", ".join(f"{ref.rows} {name}" for name, ref in made.data.items())
        case Evaluated():
            reward, counts = made.result.reward, made.result.counts
            return f"reward {reward.mean:.3f} of {counts['rollouts']} rollouts"
        case Baselines():
            return "; ".join(f"{b.label}: {b.result.reward.mean:.3f}" for b in made.baselines)
        case Synthesized():
            return f"{made.rows.rows} rows"
        case Trained():
            last = {k: made.metrics[k] for k in ("reward/mean", "loss") if k in made.metrics}
            return ", ".join([f"{made.steps} steps", *(f"{k} {v:.3f}" for k, v in last.items())])
        case _:
            return ""


def reward_curve(run: Run) -> list[tuple[float, float]]:
    """Return (step, mean reward of its samples) of the GRPO stage; a redone step counts once."""
    points = {
        float(line["step"]): float(line["reward/mean"])
        for line in read_metrics(run.path("grpo", "metrics.jsonl"))
        if "reward/mean" in line
    }
    return sorted(points.items())


def samples(
    before: Sequence[ScoredRollout], after: Sequence[ScoredRollout], count: int = 12
) -> list[SampleRollout]:
    """Return held-out questions with both answers, a few of every task."""
    later = {rollout.key: (rollout, score) for rollout, score in after}
    chosen: list[SampleRollout] = []
    seen: dict[str, int] = {}
    tasks = {rollout.task for rollout, _ in before}
    share = max(1, count // max(len(tasks), 1))
    for rollout, score in before:
        if rollout.key not in later or seen.get(rollout.task, 0) >= share:
            continue
        seen[rollout.task] = seen.get(rollout.task, 0) + 1
        other, other_score = later[rollout.key]
        chosen.append(
            SampleRollout(
                question=last_text(rollout.prompt),
                gold=rollout.answer,
                before=last_text(rollout.completion),
                before_reward=score.reward,
                after=last_text(other.completion),
                after_reward=other_score.reward,
                task=rollout.task,
            )
        )
    return chosen


def last_text(messages: Messages) -> str:
    """Return the text of the last message."""
    if isinstance(messages, str):
        return messages
    return str(messages[-1].get("content") or "") if messages else ""


def measurements(gains: Gains) -> list[Measurement]:
    """Return what was measured, in the order of training: each prompting of the base first."""
    bases = [
        _measurement(f"base, {base.label}", base, comparison, after=False)
        for base, comparison in zip(gains.bases, gains.over, strict=True)
    ]
    return [
        *bases,
        _measurement("SFT", gains.warm, gains.by_sft, after=True),
        _measurement("trained", gains.trained, gains.by_grpo, after=True),
    ]


def _measurement(
    label: str, model: Measured, comparison: Comparison, *, after: bool
) -> Measurement:
    side = "after" if after else "before"
    tasks = {name: getattr(change, side) for name, change in comparison.per_task.items()}
    return Measurement(label, getattr(comparison, side), tasks, model.truncated)


def _gain(label: str, comparison: Comparison) -> Gain:
    tasks = {name: change.difference for name, change in comparison.per_task.items()}
    return Gain(label, comparison.difference, tasks)
