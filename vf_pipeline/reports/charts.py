"""Two charts as inline SVG: a curve over steps, and estimates with their intervals.

Colours come from the page's CSS classes, so that the charts follow its light or dark scheme. All
text is escaped. Deliberately lacks a plotting library: two charts do not need one.
"""

import math
from collections.abc import Sequence
from html import escape

from vf_pipeline.types import Interval

# Drawn about as wide as a phone is, so that labels stay readable there.
_WIDTH = 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 16, 14, 40
_ROW = 50
_LABEL = 26  # letters of the longest label
_LETTER = 6.6  # width of a letter of the label font, in units of the drawing


def curve(points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """Return a line through (x, y) points with axes; "" for fewer than two finite points."""
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(known) < 2:
        return ""
    height = 260
    xs, ys = [x for x, _ in known], [y for _, y in known]
    x_ticks = ticks(min(xs), max(xs), whole=all(float(x).is_integer() for x in xs))
    y_ticks = ticks(min(0.0, *ys), max(1.0, *ys)) if min(ys) >= 0 else ticks(min(ys), max(ys))
    x_of = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    y_of = _Scale(y_ticks[0], y_ticks[-1], height - _BOTTOM, _TOP)
    parts = [_horizontal_grid(y_ticks, y_of), _x_axis(x_ticks, x_of, height - _BOTTOM)]
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in known)
    parts.append(f'<polyline class="line" points="{path}"/>')
    for x, y in known:
        title = f"<title>{escape(x_label)} {x:g}: {y:.3f}</title>"
        parts.append(
            f'<circle class="dot" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3">{title}</circle>'
        )
    parts.append(_axis_names(x_label, y_label, height))
    return _svg(height, f"{y_label} over {x_label}", parts)


def intervals(rows: Sequence[tuple[str, Interval]], x_label: str) -> str:
    """Return one dot with its 95 % whisker for each labelled estimate; "" where none is known."""
    known = [(label, row) for label, row in rows if math.isfinite(row.mean)]
    if not known:
        return ""
    left = 14 + _LETTER * min(max(len(label) for label, _ in known), _LABEL)
    height = _TOP + _ROW * len(known) + _BOTTOM
    ends = [end for _, row in known for end in (row.mean, *_bounds(row))]
    x_ticks = ticks(min(0.0, *ends), max(1.0, *ends))
    x_of = _Scale(x_ticks[0], x_ticks[-1], left, _WIDTH - _RIGHT - 8)
    base = height - _BOTTOM
    parts = [_vertical_grid(x_ticks, x_of, base), _x_axis(x_ticks, x_of, base)]
    for at, (label, row) in enumerate(known):
        parts.append(_whisker(label, row, x_of, _TOP + _ROW * (at + 0.5), left))
    middle = (left + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, height - 6, x_label, "middle", "name"))
    return _svg(height, f"{x_label}, with 95 % intervals", parts)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return about five round numbers whose ends enclose low … high (whole: lie inside it)."""
    span = high - low if high > low else max(abs(high), 1.0)
    step = 10.0 ** math.floor(math.log10(span / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    if whole:
        step = max(1.0, math.ceil(step))
        first, last = math.ceil(low / step), math.floor(high / step)
    else:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        last = max(last, first + 1)
    return [round(at * step, 10) for at in range(first, last + 1)]


class _Scale:
    """A linear map of a range of values onto a range of the drawing."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.start = low, start
        self.factor = (end - start) / (high - low) if high > low else 0.0

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * self.factor


def _whisker(label: str, row: Interval, x_of: _Scale, y: float, left: float) -> str:
    low, high = _bounds(row)
    short = label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"
    value = f"{row.mean:.3f}"
    title = f"<title>{escape(label)}: {value} (95 % CI {low:.3f} … {high:.3f}, n = {row.n})</title>"
    # The number stands above the dot, inside the frame also at its ends.
    anchor = "middle"
    if x_of(row.mean) > _WIDTH - _RIGHT - 40:
        anchor = "end"
    elif x_of(row.mean) < left + 20:
        anchor = "start"
    return (
        f'<g>{title}<line class="whisker" x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" '
        f'y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle class="dot" cx="{x_of(row.mean):.1f}" cy="{y:.1f}" r="4.5"/>'
        + _text(left - 8, y + 4, short, "end", "label")
        + _text(x_of(row.mean), y - 8, value, anchor, "value")
        + "</g>"
    )


def _bounds(row: Interval) -> tuple[float, float]:
    known = math.isfinite(row.low) and math.isfinite(row.high)
    return (row.low, row.high) if known else (row.mean, row.mean)


def _horizontal_grid(values: Sequence[float], y_of: _Scale) -> str:
    parts = []
    for value in values:
        y = y_of(value)
        end = _WIDTH - _RIGHT
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", "end", "tick"))
    return "".join(parts)


def _vertical_grid(values: Sequence[float], x_of: _Scale, base: float) -> str:
    return "".join(
        f'<line class="grid" x1="{x_of(v):.1f}" x2="{x_of(v):.1f}" y1="{_TOP}" y2="{base}"/>'
        for v in values
    )


def _x_axis(values: Sequence[float], x_of: _Scale, base: float) -> str:
    return "".join(
        _text(x_of(value), base + 16, f"{value:g}", "middle", "tick") for value in values
    )


def _axis_names(x_label: str, y_label: str, height: int) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    up = (height - _BOTTOM + _TOP) / 2
    return _text(middle, height - 6, x_label, "middle", "name") + (
        f'<text class="name" text-anchor="middle" transform="translate(12 {up:.1f}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{name}">'
        + "".join(parts)
        + "</svg>"
    )
