import json
import subprocess
import sys

import pytest

import vf_pipeline as vf

HEAVY = ["torch", "prefect", "mlflow", "openai", "datasets", "transformers", "pyarrow", "rich"]

PROBE = f"""
import sys, time
start = time.perf_counter()
import vf_pipeline
elapsed = time.perf_counter() - start
import json
print(json.dumps([elapsed, [name for name in {HEAVY} if name in sys.modules]]))
"""


def probe(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_import_is_quick_and_light():
    probe(PROBE)  # the first one may compile
    runs = [probe(PROBE) for _ in range(3)]
    assert all(loaded == [] for _, loaded in runs)
    assert min(elapsed for elapsed, _ in runs) <= 0.3


@pytest.mark.parametrize("name", vf.__all__)
def test_every_public_name_is_there(name):
    assert getattr(vf, name) is not None
    assert name in dir(vf)


def test_the_listing_is_sorted_and_complete():
    assert vf.__all__ == sorted(vf.__all__)
    assert len(vf.__all__) == len(set(vf.__all__))
    assert set(vf._LAZY) <= set(vf.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="'vf_pipeline' has no attribute 'SingleTurn'"):
        vf.SingleTurn  # noqa: B018


def test_a_star_import_gives_the_public_names():
    names = probe("import json\nfrom vf_pipeline import *\nprint(json.dumps(sorted(globals())))")
    assert {"SingleTurnEnv", "FakeClient", "load_environment"} <= set(names)
