"""The page: the verdict first, nothing from outside, every text escaped."""

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from vf_pipeline.reports.charts import curve, intervals, ticks
from vf_pipeline.reports.page import (
    ChainReport,
    Gain,
    Measurement,
    SampleRollout,
    StageTime,
    render_report,
)
from vf_pipeline.types import Interval

EVIL = "</pre><script>alert('x')</script> {{ 7 * 7 }} & \"quoted\" \ud83d"


def full_report() -> ChainReport:
    tasks = {"larger": Interval(0.5, 0.05, 0.4, 0.6, 60), "even <b>": Interval(1, 0, 0.9, 1, 9)}
    return ChainReport(
        title="quickstart-0123456789",
        verdict="+87.1 points (95 % CI 82.3 … 91.4) on 240 held-out examples",
        passed=True,
        notes=["SFT over base: +60.0 points"],
        stages=[StageTime("prepare", 3.21, "1400 examples"), StageTime("grpo", 252.0)],
        measurements=[
            Measurement("base, zero-shot", Interval(0.0, 0.0, 0.0, 0.016, 240), tasks, 1.0),
            Measurement("trained", Interval(0.871, 0.02, 0.82, 0.91, 240), tasks),
        ],
        note="The best prompted base is chosen on these examples.",
        gains=[Gain("trained − base", Interval(0.871, 0.02, 0.823, 0.914, 240), tasks)],
        reward_curve=[(1, 0.5), (2, 0.7), (3, 0.9)],
        funnel={"sampled": 640, "not_truncated": 600, "kept": 150},
        samples=[SampleRollout("Which is larger?", "98", EVIL, 0.0, "98", None, "larger")],
        settings={"grpo": {"lr": 1e-5}, "evil": EVIL},
        digests={"base weights": "0123456789abcdef"},
        links={"MLflow": "http://127.0.0.1:5000/#/x", "bad": "javascript:alert(1)"},
    )


class Page(HTMLParser):
    """Collects tags, addresses and text, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words += data


def read(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def test_page_holds_everything_and_the_verdict_first() -> None:
    page = read(render_report(full_report()))
    body = page.words.partition("held-out examples")[2]
    for text in (
        "+87.1 points (95 % CI 82.3 … 91.4)",
        "4 m 12 s",
        "0.871 (0.820 … 0.910)",
        "+87.1 (82.3 … 91.4)",
        "base, zero-shot0.000 (0.000 … 0.016)100.0 %240",
        "trained0.871 (0.820 … 0.910)–240",
        "answers cut by the token limit",
        "is chosen on these examples",
        "training step",
        "not truncated",
        "640",
        "0123456789abcdef",
        "not scored",
        "1e-05",
    ):
        assert text in page.words
    order = [body.index(text) for text in ("Before and after", "Stages", "Synthetic data", "Sett")]
    assert order == sorted(order)


def test_page_loads_nothing_and_untrusted_text_stays_text() -> None:
    html = render_report(full_report())
    page = read(html)
    assert page.tags & {"script", "img", "iframe", "link", "object", "b"} == set()
    assert page.addresses == ["http://127.0.0.1:5000/#/x"]
    assert "alert('x')" in page.words
    assert "{{ 7 * 7 }}" in page.words
    assert "url(" not in html
    assert "@import" not in html


def test_page_suits_phones_and_both_schemes() -> None:
    html = render_report(full_report())
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert html.count("<table>") == html.count('<div class="scroll"><table>')


def test_page_with_next_to_nothing() -> None:
    page = read(render_report(ChainReport("x", "no result")))
    assert "no result" in page.words
    assert "table" not in page.tags


def test_runaway_answer_is_cut() -> None:
    sample = SampleRollout("q", "g", "x" * 100_000, 0.0, "y", 1.0)
    html = render_report(ChainReport("x", "v", samples=[sample]))
    assert len(html) < 30_000
    assert "(100000 characters)" in html


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.03, 0.97), (-3.0, 12.0), (5.0, 5.0)])
def test_ticks_are_round_few_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert found[0] <= low
    assert found[-1] >= high
    steps = {round(b - a, 9) for a, b in pairwise(found)}
    assert len(steps) == 1
    assert re.fullmatch(r"[125]0*", f"{steps.pop() * 1e6:.0f}")


def test_curve_is_drawn_to_scale() -> None:
    svg = ElementTree.fromstring(curve([(0, 0.0), (5, 0.5), (10, 1.0)], "step", "a < b"))
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in svg.iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 == pytest.approx((x0 + x2) / 2)
    assert y1 == pytest.approx((y0 + y2) / 2)
    assert x0 < x2
    assert y0 > y2
    assert "a < b" in "".join(svg.itertext())
    assert curve([(0, math.nan), (1, 0.5)], "step", "reward") == ""


def test_intervals_are_drawn_to_scale() -> None:
    rows = [("base", Interval(0.0, 0.1, 0.0, 0.2, 9)), ("x<y", Interval(0.5, 0.1, 0.4, 0.6, 9))]
    svg = ElementTree.fromstring(intervals(rows, "reward"))
    whiskers = [w for w in svg.iter("line") if w.get("class") == "whisker"]
    (a, b), (c, d) = [(float(w.get("x1", 0)), float(w.get("x2", 0))) for w in whiskers]
    assert b - a == pytest.approx(d - c, abs=0.2)
    assert c - a == pytest.approx(2 * (b - a), abs=0.3)
    assert intervals([("none", Interval(math.nan, 0, 0, 0, 0))], "reward") == ""
