"""The import rules: a room imports only from rooms above it, and heavy packages stay in theirs."""

import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "vf_pipeline"

# From the top of the house to its bottom.
ROOMS = """
    errors types plain configs storage progress tracking processes runs inference tokens sandbox
    parsers verification rubrics environments registry rollouts data evaluation synthesis models
    serving training reports testing compat cli
""".split()  # noqa: SIM905 - a list of 25 quoted words reads worse

# Thin doors: these methods import their workers when they are called.
DOORS = {"generate", "evaluate", "process_env_results_vllm"}
DOORS_FILE = "environments/environment.py"

# Package → the places that may import it.
HOMES = {
    "prefect": (),
    "flows": (),
    "tasks": (),
    "deployments": (),
    "infra": (),
    "mlflow": ("tracking/",),
    "torch": (
        "training/trainer/",
        "training/transports/",
        "serving/engine/",
        "models/",
        "testing.py",
    ),
    "vllm": ("serving/backends/",),
    "aiohttp.web": ("serving/",),
}
# Where torch may be imported with the module, for nothing there is imported by a command's start.
EAGER_TORCH = ("training/trainer/", "serving/engine/", "models/conversion.py")

IMPORT_LIMIT_S = 0.3


@dataclass(frozen=True)
class Import:
    """One import statement: where it stands, what it names, and the functions around it."""

    file: str
    line: int
    module: str
    functions: tuple[str, ...]

    def __str__(self) -> str:
        return f"vf_pipeline/{self.file}:{self.line} imports {self.module}"


def imports_of(path: Path) -> Iterator[Import]:
    file = path.relative_to(LIBRARY).as_posix()
    yield from _walk(ast.parse(path.read_text(encoding="utf-8")), file, ())


def _walk(node: ast.AST, file: str, functions: tuple[str, ...]) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            # Names for the type checker alone; the order of the rooms holds for them as well.
            yield from _walk(child, file, (*functions, "TYPE_CHECKING"))
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, file, (*functions, child.name))
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, functions)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"vf_pipeline/{file}:{child.lineno}: imports are absolute"
            for alias in child.names:
                yield Import(file, child.lineno, f"{child.module}.{alias.name}", functions)
        else:
            yield from _walk(child, file, functions)


def all_imports() -> list[Import]:
    return [found for path in sorted(LIBRARY.rglob("*.py")) for found in imports_of(path)]


def room_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def test_every_room_has_its_place_in_the_order() -> None:
    found = {room_of(path.relative_to(LIBRARY).as_posix()) for path in LIBRARY.rglob("*.py")}
    assert found - {"__init__"} <= set(ROOMS)


def test_a_room_imports_only_from_rooms_above_it() -> None:
    wrong = []
    for found in all_imports():
        room, parts = room_of(found.file), found.module.split(".")
        if room == "__init__" or parts[0] != "vf_pipeline" or len(parts) == 1:
            continue
        if parts[1] not in ROOMS:  # a name of the package itself, such as __version__
            wrong.append(f"{found}: from the package, not from a room")
        elif ROOMS.index(parts[1]) > ROOMS.index(room) and not is_door(found):
            wrong.append(f"{found}: {parts[1]} lies below {room}")
    assert wrong == []


def is_door(found: Import) -> bool:
    return found.file == DOORS_FILE and bool(DOORS & set(found.functions))


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_heavy_package_is_imported_only_at_home(package: str) -> None:
    homes = HOMES[package]
    wrong = [
        str(found)
        for found in all_imports()
        if f"{found.module}.".startswith(f"{package}.")
        and not found.file.startswith(homes or ("-",))
    ]
    assert wrong == []


def test_torch_is_imported_inside_functions_where_a_start_would_feel_it() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if found.module.split(".")[0] in ("torch", "transformers", "accelerate")
        and not found.functions
        and not found.file.startswith(EAGER_TORCH)
    ]
    assert wrong == []


def test_project_code_imports_in_its_direction() -> None:
    allowed = {
        "tasks": {"tasks"},
        "infra": {"infra"},
        "flows": {"flows", "tasks", "infra"},
        "deployments": {"deployments"},
    }
    wrong = []
    for folder, targets in allowed.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                for name in names:
                    top = name.split(".")[0]
                    if top in allowed and top not in targets:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {name}")
    assert wrong == []


def test_the_environments_use_public_names_only() -> None:
    wrong = []
    for path in sorted((ROOT / "envs").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vf_pipeline."):
                public = node.module == "vf_pipeline.testing" and "tests" in path.parts
                if not public:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}")
    assert wrong == []


def test_the_library_imports_fast_and_without_heavy_packages() -> None:
    program = (
        "import json, sys, time\n"
        "start = time.process_time()\n"
        "import vf_pipeline\n"
        "spent = time.process_time() - start\n"
        "print(json.dumps([spent, sorted(sys.modules)]))\n"
    )
    seconds = []
    for _ in range(3):
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
        spent, modules = json.loads(done.stdout)
        seconds.append(spent)
        heavy = {"torch", "prefect", "mlflow", "transformers", "datasets", "openai"}
        assert heavy.isdisjoint(modules)
    assert statistics.median(seconds) <= IMPORT_LIMIT_S, seconds
