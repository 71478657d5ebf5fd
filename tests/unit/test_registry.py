import importlib
import sys

import pytest

from vf_pipeline.environments import SingleTurnEnv
from vf_pipeline.errors import (
    ConfigError,
    EnvironmentFault,
    PrerequisiteError,
    UnknownNameError,
    VfError,
)
from vf_pipeline.registry import installed_environments, load_environment

GOOD = """
import vf_pipeline as vf
__version__ = "7"
def load_environment(size: int = 1):
    rows = [{"question": str(i)} for i in range(size)]
    return vf.SingleTurnEnv(dataset=rows)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that writes a module and, when an id is given, registers it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(module, source, env_id=None, version="1.2"):
        (tmp_path / f"{module}.py").write_text(source)
        if env_id is not None:
            folder = tmp_path / f"{module}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
            )
            (folder / "entry_points.txt").write_text(
                f"[vf_pipeline.environments]\n{env_id} = {module}:load_environment\n"
            )
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("trial_"):
            del sys.modules[name]


def test_an_installed_environment_is_loaded(project):
    project("trial_good", GOOD, "trial-good")
    assert installed_environments()["trial-good"] == "1.2"
    env = load_environment("trial-good", size=3)
    assert isinstance(env, SingleTurnEnv)
    assert len(env.examples("train")) == 3
    assert (env.env_id, env.version, env.env_args) == ("trial-good", "1.2", {"size": 3})


def test_the_id_need_not_be_the_modules_name(project):
    project("trial_other", GOOD, "a-better-name")
    assert load_environment("a-better-name").env_id == "a-better-name"


def test_a_module_that_is_not_registered_is_found_by_name(project):
    project("trial_plain", GOOD)
    assert load_environment("trial-plain").version == "7"
    assert "trial-plain" not in installed_environments()


def test_an_unknown_environment_gets_a_suggestion_and_a_remedy(project):
    project("trial_good", GOOD, "trial-good")
    with pytest.raises(UnknownNameError) as caught:
        load_environment("trial-god")
    assert "did you mean 'trial-good'?" in str(caught.value)
    assert "pip install -e envs/trial_god" in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"known: .*trial-good"):
        load_environment("zzzzzz")


@pytest.mark.parametrize("env_id", ["", "../up", "a.b", "no such"])
def test_what_is_no_id_is_unknown(env_id):
    with pytest.raises(UnknownNameError):
        load_environment(env_id)


def test_a_module_that_is_no_environment_is_refused():
    with pytest.raises(ConfigError, match="'json' is no environment"):
        load_environment("json")


def test_a_missing_dependency_is_named_not_the_environment(project):
    for module, env_id in [("trial_needs", "trial-needs"), ("trial_wants", None)]:
        project(module, "import no_such_package.inner\n" + GOOD, env_id)
        with pytest.raises(PrerequisiteError, match="'no_such_package', which is not") as caught:
            load_environment(module.replace("_", "-"))
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_name_that_cannot_be_imported_keeps_its_cause(project):
    project("trial_renamed", "from json import no_such_name\n" + GOOD)
    with pytest.raises(PrerequisiteError, match="no_such_name"):
        load_environment("trial-renamed")


def test_code_that_raises_is_a_fault_with_its_cause(project):
    project("trial_raises", "1 / 0\n" + GOOD, "trial-raises")
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError: division by zero") as caught:
        load_environment("trial-raises")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    project("trial_fails", "def load_environment():\n    return {}['x']\n")
    with pytest.raises(EnvironmentFault, match=r"load_environment\(\).*KeyError"):
        load_environment("trial-fails")


def test_explained_errors_pass_through(project):
    project(
        "trial_strict",
        "import vf_pipeline as vf\ndef load_environment():\n    raise vf.ConfigError('too many')\n",
    )
    with pytest.raises(VfError, match=r"^too many$"):
        load_environment("trial-strict")


def test_unknown_arguments_are_named(project):
    project("trial_good", GOOD)
    with pytest.raises(UnknownNameError, match=r"'sizes'.*did you mean 'size'"):
        load_environment("trial-good", sizes=3)
    project("trial_any", GOOD.replace("size: int = 1", "size=1, **kwargs"))
    assert load_environment("trial-any", sizes=3)


def test_something_else_than_an_environment_is_a_fault(project):
    project("trial_none", "def load_environment():\n    pass\n")
    with pytest.raises(EnvironmentFault, match="returned a NoneType"):
        load_environment("trial-none")
