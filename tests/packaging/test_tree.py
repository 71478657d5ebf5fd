"""The tree: names that shadow nothing, a README that tells the truth, no trace of one machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {
    ".git", ".venv", ".vf", "outputs", "build", "dist", "__pycache__", ".hypothesis",
    ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip
TREE_HEADING = "## Where things live"


def files() -> Iterator[Path]:
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name in SKIPPED or path.is_symlink() or path == ROOT / "runs":
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


def test_no_file_of_flows_and_tasks_is_named_like_a_package() -> None:
    ours = {"flows", "tasks", "deployments", "vf_pipeline"}
    taken = (set(sys.stdlib_module_names) | set(packages_distributions())) - ours
    stems = {path.stem for folder in ("flows", "tasks") for path in (ROOT / folder).glob("*.py")}
    assert (stems - {"__init__", "__main__"}) & taken == set()


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    # Pieced together, so that this file does not find itself.
    places = "|".join(["ro" + "ot", "wo" + "rk", "ho" + r"me/\w+", "Us" + r"ers/\w+"])
    pattern = re.compile(rf"(?<![\w.\-~}}])/(?:{places})/")
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def readme_tree() -> list[str]:
    """Return the paths of the README's tree; an indented line lies in the folder above it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split(TREE_HEADING, 1)[1].split("```", 2)[1]
    paths: list[str] = []
    above: list[tuple[int, str]] = []
    for line in block.split("\n")[1:]:
        name = line.split()[0] if line.strip() else ""
        indent = len(line) - len(line.lstrip())
        if not name or indent > 8:  # blank, or a description that goes on
            continue
        above = [(depth, folder) for depth, folder in above if depth < indent]
        path = "".join(folder for _, folder in above) + name
        paths.append(path)
        if name.endswith("/"):
            above.append((indent, name))
    return paths


def test_everything_in_the_readme_tree_exists() -> None:
    paths = readme_tree()
    assert len(paths) > 10
    missing = [
        path
        for path in paths
        if not ((ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file())
    ]
    assert missing == []


def test_every_link_of_the_pages_leads_somewhere() -> None:
    broken = []
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_target_of_the_makefile_is_described() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    listed = re.findall(r"^  make (\S+) +\S.*$", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())
