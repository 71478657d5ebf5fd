"""What a run leaves in Prefect: the verdict first, then the stages, then where to read on."""

import os
from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import Synthesized, Trained
from vf_pipeline.types import EvalResult


def publish_verdict(run: Run, lines: Sequence[str]) -> None:
    """Write the chain's verdict, its stages and its links."""
    rest = [f"* {line}" for line in lines[1:]] + [f"* Report: `{run.path('report.html')}`"]
    _publish(run, "verdict", lines[0], rest)


def publish_evaluation(run: Run, result: EvalResult) -> None:
    """Write an evaluation's estimate with its interval, and what it is made of."""
    reward = result.reward
    head = (
        f"{100 * reward.mean:.1f} % (95 % CI {100 * reward.low:.1f} … {100 * reward.high:.1f}), "
        f"{reward.n} examples, {result.duration_s:.0f} s"
    )
    rest = [f"* {kind}: {count}" for kind, count in result.counts.items()]
    _publish(run, "evaluation", head, [*rest, f"* Rollouts: `{result.rollouts_uri}`"])


def publish_rows(run: Run, made: Synthesized) -> None:
    """Write how many rows were made, and how many fell at each step."""
    rest = [f"* {step}: {count}" for step, count in made.funnel.items()]
    _publish(run, "rows", f"{made.rows.rows} SFT rows", rest)


def publish_training(run: Run, made: Trained) -> None:
    """Write where training ended."""
    rest = [f"* {name}: {value:.4g}" for name, value in made.metrics.items()]
    _publish(run, "training", f"{made.steps} GRPO steps", [f"* Model: `{made.model.uri}`", *rest])


def publish_link(run: Run) -> None:
    """Write where the run is in MLflow."""
    key = f"mlflow-{run.config.name}"
    create_link_artifact(mlflow_link(run), link_text="The run in MLflow", key=key)


def stage_rows(run: Run) -> list[dict[str, Any]]:
    """Return one row a finished stage: name, seconds, key."""
    return [
        {"stage": name, "seconds": record.duration_s, "key": record.key}
        for name, record in run.manifest.stages.items()
    ]


def mlflow_link(run: Run) -> str:
    """Return where `make ui` shows the run in MLflow."""
    return str(run.manifest.facts.get("mlflow_url") or os.environ.get("VF_MLFLOW_UI", ""))


def _publish(run: Run, kind: str, head: str, rest: list[str]) -> None:
    key = run.config.name
    body = "\n".join([f"# {head}", "", *rest, ""])
    create_markdown_artifact(body, key=f"{kind}-{key}", description=head)
    create_table_artifact(stage_rows(run), key=f"stages-{key}", description="What each stage did")
