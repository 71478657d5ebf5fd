"""Compare before and after, write the report, and promote the model if the gate is passed."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from vf_pipeline import storage
from vf_pipeline.evaluation.compare import Comparison, compare, verdict
from vf_pipeline.reports.chain import chain_report
from vf_pipeline.reports.page import render_report
from vf_pipeline.rollouts.journal import read_journal
from vf_pipeline.runs import Run, mlflow_uri
from vf_pipeline.tracking import register_model


@task(name="promote-model", cache_policy=NO_CACHE)
def promote_model(run: Run) -> dict[str, Any]:
    """Return the verdict; the report lies in the run directory, the model in the registry."""
    base, warm, trained = (_pairs(run, stage) for stage in ("base", "sft", "trained"))
    total = compare(base, trained)
    by_sft, by_grpo = compare(base, warm), compare(warm, trained)
    passed = total.difference.low > run.config.gate.min_gain
    lines = verdict_lines(total, by_sft, by_grpo, passed)
    report = chain_report(run, lines, (total, by_sft, by_grpo), (base, warm, trained))
    storage.write_text(run.path("report.html"), render_report(report))
    with run.start_tracker("promote") as tracker:
        for name, part in (("total", total), ("sft", by_sft), ("grpo", by_grpo)):
            tracker.log_metrics({f"gain/{name}/{k}": v for k, v in _numbers(part).items()})
        version = register_model(
            mlflow_uri(run.config),
            f"vf-{run.config.environment.id}",
            run.model("grpo").uri,
            run_id=tracker.run_id,
            alias="champion" if passed else "candidate",
            tags={"digest": run.model("grpo").digest, "verdict": lines[0]},
        )
    with run.start_tracker("") as parent:
        parent.log_metrics({"gain/mean": total.difference.mean, "gain/low": total.difference.low})
        parent.log_artifact(run.path("report.html"))
    gains = {"total": total, "sft": by_sft, "grpo": by_grpo}
    return {
        "passed": passed,
        "verdict": lines,
        "gains": {name: asdict(part.difference) for name, part in gains.items()},
        "model_version": version,
        "report": str(run.path("report.html")),
    }


def verdict_lines(
    total: Comparison, by_sft: Comparison, by_grpo: Comparison, passed: bool
) -> list[str]:
    """Return the verdict: the gain first, then what each training stage added."""
    sign = "PASSED" if passed else "NOT PASSED"
    lines = [
        f"{sign}: {verdict(total)}",
        f"SFT over base:  {verdict(by_sft)}",
        f"GRPO over SFT:  {verdict(by_grpo)}",
    ]
    if total.unpaired:
        lines.append(f"{total.unpaired} examples left out: a rollout failed or has no score")
    return lines


def _pairs(run: Run, which: str) -> list[Any]:
    return read_journal(Path(run.stage_outputs[f"evaluate-{which}"]["rollouts"]))


def _numbers(part: Comparison) -> dict[str, float]:
    difference = part.difference
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}
