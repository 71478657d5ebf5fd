"""One self-contained HTML page about a chain: the verdict, then pictures, tables and samples.

Every text is escaped, the model's answers above all: the page loads nothing and runs no script.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vf_pipeline.reports.charts import curve, intervals
from vf_pipeline.types import Interval

MAX_SAMPLES = 24
_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage: how long it took, and one line on what it did."""

    name: str
    duration_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured model ("base", "SFT", "trained"): its reward, overall and for each task.

    ``truncated`` is the share of its answers that a token limit cut, NaN where it is not known.
    """

    label: str
    reward: Interval
    per_task: Mapping[str, Interval] = field(default_factory=dict)
    truncated: float = math.nan


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference ("SFT − base"), overall and for each task."""

    label: str
    difference: Interval
    per_task: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleRollout:
    """One held-out question, with what the model answered before and after."""

    question: str
    gold: str
    before: str
    before_reward: float | None
    after: str
    after_reward: float | None
    task: str = ""


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Everything the page shows; empty parts are left out of it.

    Args:
        title: name of the run.
        verdict: the outcome in one line, the number first.
        passed: whether the gate was passed; None where there was none.
        notes: further lines below the verdict.
        stages: what ran, in order.
        measurements: the models that were measured, in the order of training.
        note: how the measurements are to be read.
        gains: differences between them.
        reward_curve: (step, mean reward of the step's samples) while training.
        funnel: how many rollouts passed each step of synthesis, in order.
        samples: held-out questions with answers before and after.
        settings: the resolved settings, nested or flat.
        digests: what identifies data and weights.
        links: where to read on; only http(s) addresses become links.
        bounded: whether rewards lie in [0, 1], so that differences are told in points.
    """

    title: str
    verdict: str
    passed: bool | None = None
    notes: Sequence[str] = ()
    stages: Sequence[StageTime] = ()
    measurements: Sequence[Measurement] = ()
    note: str = ""
    gains: Sequence[Gain] = ()
    reward_curve: Sequence[tuple[float, float]] = ()
    funnel: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[SampleRollout] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    bounded: bool = True


def render_report(report: ChainReport) -> str:
    """Return the page as HTML that needs no other file."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(
        loader=PackageLoader("vf_pipeline.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "estimate": _estimate,
        "points": _points_of(report.bounded),
        "share": _share,
        "seconds": _seconds,
        "clip": _clip,
    }
    chart = intervals([(m.label, m.reward) for m in report.measurements], "mean reward, held out")
    # Only the charts are markup; they escape their own labels.
    return pages.get_template("chain.html.j2").render(
        report=report,
        tasks=_tasks(report),
        total_s=math.fsum(stage.duration_s for stage in report.stages),
        reward_chart=Markup(curve(report.reward_curve, "training step", "mean reward")),
        interval_chart=Markup(chart),
        samples=list(report.samples)[:MAX_SAMPLES],
        settings=json.dumps(report.settings, indent=2, default=str, ensure_ascii=False),
    )


def _tasks(report: ChainReport) -> list[str]:
    parts = [row.per_task for row in report.measurements] + [row.per_task for row in report.gains]
    return sorted({task for part in parts for task in part})


def _estimate(interval: Interval | None) -> str:
    """Return "0.912 (0.870 … 0.943)"."""
    if interval is None or math.isnan(interval.mean):
        return "–"
    if math.isnan(interval.low):
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} ({interval.low:.3f} … {interval.high:.3f})"


def _share(value: float) -> str:
    """Return "38.5 %"."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def _points_of(bounded: bool) -> Any:
    """Return the filter for differences: "+87.1 (82.3 … 91.4)" in points, or plain reward."""
    factor, digits = (100.0, ".1f") if bounded else (1.0, ".3f")

    def points(interval: Interval | None) -> str:
        if interval is None or math.isnan(interval.mean):
            return "–"
        mean, low, high = (
            round(factor * value, int(digits[1])) + 0.0
            for value in (interval.mean, interval.low, interval.high)
        )
        text = f"{mean:+{digits}}"
        return text if math.isnan(low) else f"{text} ({low:{digits}} … {high:{digits}})"

    return points


def _seconds(value: float) -> str:
    """Return a duration as "41 s" or "3 m 12 s"."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} m"
    return f"{minutes} m {rest} s" if minutes else f"{rest} s"


def _clip(text: str) -> str:
    """Return text of bounded length: one runaway answer must not swell the page."""
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + f" … ({len(text)} characters)"
