"""What is shipped: the library alone, typed, with the commands that exist."""

import importlib
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_library_only(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    info = f"vf_pipeline-{PROJECT['version']}.dist-info"
    assert tops == {"vf_pipeline", info}


def test_the_wheel_holds_every_module_and_the_type_marker(wheel: zipfile.ZipFile) -> None:
    library = ROOT / "vf_pipeline"
    modules = {path.relative_to(ROOT).as_posix() for path in library.rglob("*.py")}
    shipped = {name for name in wheel.namelist() if name.startswith("vf_pipeline/")}
    assert modules | {"vf_pipeline/py.typed"} <= shipped
    assert not [name for name in shipped if "__pycache__" in name]


def test_the_base_is_light(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(path).decode())
    base = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    names = {need.split(">")[0].split("=")[0].strip() for need in base}
    assert names.isdisjoint({"torch", "transformers", "prefect", "mlflow", "vllm", "deepspeed"})
    assert metadata["License-Expression"] == "Apache-2.0"


def test_all_is_the_sum_of_the_extras_that_need_no_gpu() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"pipeline", "train", "envs", "dev", "gpu", "all"}
    assert extras["all"] == ["vf-pipeline[pipeline,train,envs]"]
    gpu = {need.split(">")[0] for need in extras["gpu"]}
    assert gpu == {"vllm", "deepspeed", "flash-attn", "liger-kernel"}


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_a_command_has_a_main_function(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_set_up_and_the_project_agree_on_torch() -> None:
    script = (ROOT / "scripts" / "setup.py").read_text(encoding="utf-8")
    (bound,) = (need for need in PROJECT["optional-dependencies"]["train"] if "torch" in need)
    assert f'TORCH = "{bound}"' in script
