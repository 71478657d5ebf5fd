import functools
import re
import subprocess
import sys

import pytest

from vf_pipeline.parsers import ThinkParser, XMLParser
from vf_pipeline.rubrics import Rubric, RubricGroup

SCRIPT = """
from vf_pipeline.rubrics import Rubric
from vf_pipeline.parsers import XMLParser
import json, string
def limit(n):
    def short(completion, pattern={"x", "y", "z"}): return float(len(completion) < n)
    return short
print(Rubric([limit(3), string.capwords, len], parser=XMLParser(["a", "answer"])).digest())
"""


def one(completion):
    return 1.0


def two(completion):
    return 2.0


def at_most(limit):
    def short(completion):
        return float(len(completion) <= limit)

    return short


class Threshold:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, completion):
        return float(len(completion) < self.limit)

    def method(self, completion):
        return self(completion)


def scaled(completion, factor):
    return factor


def test_the_digest_is_the_same_for_the_same_scoring():
    def make():
        return Rubric([one, at_most(3), Threshold(2), Threshold(2).method], parser=ThinkParser())

    assert make().digest() == make().digest()
    assert len(make().digest()) == 16


@pytest.mark.parametrize(
    "other",
    [
        Rubric([two]),
        Rubric([one], weights=[2]),
        Rubric([one, two], weights=[1, 0]),
        Rubric([one], parser=ThinkParser()),
        Rubric(),
    ],
)
def test_another_function_weight_or_parser_changes_it(other):
    assert Rubric([one]).digest() != other.digest()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (at_most(3), at_most(4)),
        (Threshold(3), Threshold(4)),
        (Threshold(3).method, Threshold(4).method),
        (functools.partial(scaled, factor=1), functools.partial(scaled, factor=2)),
        (len, abs),
        (at_most(re.compile("a")), at_most(re.compile("b"))),
    ],
)
def test_what_a_function_holds_counts(a, b):
    assert Rubric([a]).digest() != Rubric([b]).digest()


def test_the_parsers_fields_count():
    rubrics = [Rubric([one], parser=XMLParser([name, "answer"])) for name in ("think", "why")]
    assert rubrics[0].digest() != rubrics[1].digest()


def test_a_new_function_weight_or_parser_gives_a_new_digest():
    rubric = Rubric([one])
    seen = {rubric.digest(), rubric.digest()}
    rubric.add_metric(two)
    seen.add(rubric.digest())
    rubric.weights[1] = 1.0
    seen.add(rubric.digest())
    rubric.parser = ThinkParser()
    seen.add(rubric.digest())
    assert len(seen) == 4


def test_a_group_is_its_rubrics_in_order():
    a, b = Rubric([one]), Rubric([two])
    assert RubricGroup([a, b]).digest() != RubricGroup([b, a]).digest()
    assert RubricGroup([a, b]).digest() == RubricGroup([Rubric([one]), Rubric([two])]).digest()


def test_the_digest_is_the_same_in_another_process():
    def run(seed):
        command = [sys.executable, "-c", SCRIPT]
        env = {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("1") == run("2")
