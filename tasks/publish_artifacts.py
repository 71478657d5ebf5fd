"""What a run leaves in Prefect: the verdict first, then the stages, then where to read on."""

import os
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from vf_pipeline.runs import Run


def publish_verdict(run: Run, lines: list[str]) -> None:
    """Write the chain's verdict, its stages and its links."""
    rest = [f"* {line}" for line in lines[1:]] + [f"* Report: `{run.path('report.html')}`"]
    _publish(run, "verdict", lines[0], rest)


def publish_evaluation(run: Run, result: dict[str, Any]) -> None:
    """Write an evaluation's estimate with its interval, and what it is made of."""
    reward, counts = result["reward"], result["counts"]
    head = (
        f"{100 * reward['mean']:.1f} % (95 % CI {100 * reward['low']:.1f} … "
        f"{100 * reward['high']:.1f}), {reward['n']} examples, {result['duration_s']:.0f} s"
    )
    rest = [f"* {kind}: {count}" for kind, count in counts.items()]
    _publish(run, "evaluation", head, [*rest, f"* Rollouts: `{result['rollouts_uri']}`"])


def publish_rows(run: Run, outcome: dict[str, Any]) -> None:
    """Write how many rows were made, and how many fell at each step."""
    rest = [f"* {step}: {count}" for step, count in outcome["funnel"].items()]
    _publish(run, "rows", f"{outcome['rows']['rows']} SFT rows", rest)


def publish_training(run: Run, outcome: dict[str, Any]) -> None:
    """Write where training ended."""
    rest = [f"* {name}: {value:.4g}" for name, value in outcome["metrics"].items()]
    model = f"* Model: `{outcome['model']['uri']}`"
    _publish(run, "training", f"{outcome['steps']} GRPO steps", [model, *rest])


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
