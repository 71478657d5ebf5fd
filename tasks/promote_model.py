"""Compare before and after, write the report, and promote the model if the gate is passed."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from vf_pipeline import storage
from vf_pipeline.evaluation.baselines import plain_prompting
from vf_pipeline.evaluation.compare import Comparison
from vf_pipeline.evaluation.gains import Gains, Measured, measure_gains
from vf_pipeline.reports.chain import chain_report
from vf_pipeline.reports.page import render_report
from vf_pipeline.reports.verdict import verdict_lines
from vf_pipeline.rollouts.journal import read_journal
from vf_pipeline.runs import Run, mlflow_uri
from vf_pipeline.runs.outputs import Baselines, Evaluated, Promoted
from vf_pipeline.runs.stages import StageName
from vf_pipeline.tracking import register_model


@task(name="promote-model", cache_policy=NO_CACHE)
def promote_model(run: Run) -> Promoted:
    """Return the verdict; the report lies in the run directory, the model in the registry."""
    gains = gains_of(run)
    best = gains.over_best.difference
    passed = best.low > run.config.gate.min_gain
    lines = verdict_lines(gains, passed, run.outputs("evaluate-prompted", Baselines).left_out)
    storage.write_text(run.path("report.html"), render_report(chain_report(run, lines, gains)))
    parts = {
        "best_prompted": gains.over_best,
        "total": gains.over_plain,
        "sft": gains.by_sft,
        "grpo": gains.by_grpo,
    }
    with run.start_tracker("promote") as tracker:
        for name, part in parts.items():
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
        # The chain's own gain is the one that its gate is about.
        parent.log_metrics({"gain/mean": best.mean, "gain/low": best.low})
        parent.log_artifact(run.path("report.html"))
    return Promoted(
        passed,
        tuple(lines),
        {name: part.difference for name, part in parts.items()},
        best_prompted=gains.bases[gains.best].label,
        model_version=version,
        report=str(run.path("report.html")),
    )


def gains_of(run: Run) -> Gains:
    """Return the comparisons of a chain whose models have all been measured."""
    stages: tuple[StageName, ...] = ("evaluate-base", "evaluate-sft", "evaluate-trained")
    plain, warm, trained = (
        read_journal(run.outputs(stage, Evaluated).rollouts) for stage in stages
    )
    prompted = [
        Measured(made.label, read_journal(made.rollouts))
        for made in run.outputs("evaluate-prompted", Baselines).baselines
    ]
    base = Measured(plain_prompting(run.config.eval).label, plain)
    return measure_gains([base, *prompted], Measured("SFT", warm), Measured("trained", trained))


def _numbers(part: Comparison) -> dict[str, float]:
    difference = part.difference
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}
