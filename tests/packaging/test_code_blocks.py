"""Every block of code in the pages: Python runs, commands are parsed by what they call."""

import argparse
import importlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vf_pipeline.configs import PipelineConfig, load_config, validate
from vf_pipeline.registry import require_environment
from vf_pipeline.runs.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "envs/*/*.md", "infra/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
LANGUAGES = {"python", "sh", "toml", "text", "mermaid"}  # the last two are pictures and outputs

# What cannot be checked here, and why.
NOT_CHECKED = {
    "git clone <this repository> vf-pipeline": "it needs the place where the project is published",
    "cd vf-pipeline": "it follows the clone",
}
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
PYTHONS = ("python", ".venv/bin/python")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def commands() -> Iterator[tuple[Block, str]]:
    """Yield the commands of the shell blocks, each by itself and without comments."""
    for block in blocks():
        if block.language == "sh":
            text = block.text.replace("\\\n", " ")
            for line in text.splitlines():
                plain = re.sub(r"(^|\s)#.*$", "", line)
                for command in re.split(r"\s*&&\s*", plain.strip()):
                    if command:
                        yield block, command


BLOCKS = list(blocks())
COMMANDS = list(dict.fromkeys(command for _, command in commands()))


def environment() -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **offline}


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_pages_are_found_and_every_block_has_a_language() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/quickstart.md"} <= {b.page for b in BLOCKS}
    assert [str(b) for b in BLOCKS if b.language not in LANGUAGES] == []
    # A block by indentation would be overlooked by everything below.
    fences = sum(path.read_text(encoding="utf-8").count("\n```") for path in PAGES)
    assert fences == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    run([sys.executable, "-c", block.text], tmp_path)


def test_toml_is_a_config() -> None:
    for block in BLOCKS:
        if block.language == "toml":
            validate(PipelineConfig, tomllib.loads(block.text), where=str(block))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in NOT_CHECKED:
        return
    program, *arguments = shlex.split(command)
    name = Path(program).name
    if program == "make":
        check_targets(arguments)
    elif program in PYTHONS:
        check_python(arguments, tmp_path, monkeypatch)
    elif name in SCRIPTS:
        check_script(name, arguments, tmp_path, monkeypatch)
    elif arguments[:2] == ["install", "-e"] and name == "pip":
        assert (ROOT / arguments[2] / "pyproject.toml").is_file()
    else:
        pytest.fail(f"no check for {command!r}: write one, or name it and its reason above")


def test_what_is_not_checked_is_still_there() -> None:
    assert set(NOT_CHECKED) <= set(COMMANDS)


def test_make_commands_in_the_text_are_targets_too() -> None:
    for path in PAGES:
        for command in re.findall(r"`(make [a-z][^`]*)`", path.read_text(encoding="utf-8")):
            check_targets(shlex.split(command)[1:])


def check_targets(arguments: list[str]) -> None:
    run(["make", "--dry-run", *arguments], ROOT)


def check_python(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if arguments[:2] == ["-m", "flows"]:
        check_flows(arguments[2:], folder, monkeypatch)
    elif arguments[:2] == ["-m", "pytest"]:
        listing = [sys.executable, *arguments, "--collect-only", "-q", "-p", "no:cacheprovider"]
        assert "::" in run(listing, ROOT).stdout
    elif arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None
    else:
        assert (ROOT / arguments[0]).is_file()  # tests/examples runs what is in examples/


def check_flows(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the command and read its settings; a plan is made."""
    args = parsed("flows.command:main", arguments, monkeypatch)
    if args.command in ("plan", "run"):
        config = load_config(PipelineConfig, [str(ROOT / path) for path in args.config], args.set)
        require_environment(config.environment.id)
    if args.command == "plan":
        places = {"VF_RUNS": str(folder / "runs"), "VF_STATE": str(folder / "state")}
        plan = run([sys.executable, "-m", "flows", *arguments], ROOT, **places).stdout
        assert plan.count("will run") == len(STAGES)


def check_script(
    name: str, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse the command; one that needs no model is run."""
    args = parsed(SCRIPTS[name], arguments, monkeypatch)
    if name == "vf-eval":
        require_environment(args.env)
        if args.model == "fake":
            module = SCRIPTS[name].partition(":")[0]
            assert "reward" in run([sys.executable, "-m", module, *arguments], folder).stdout


class _Parsed(BaseException):
    """Carries the parsed arguments past all that a command would do with them."""


def parsed(main: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Return what a command's own parser makes of its arguments."""
    module, _, function = main.partition(":")
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        raise _Parsed(parse(parser, *args, **kwargs))

    before = signal.getsignal(signal.SIGTERM)  # commands set their own
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        try:
            getattr(importlib.import_module(module), function)(arguments)
        except _Parsed as found:
            (namespace,) = found.args
            return namespace
        finally:
            signal.signal(signal.SIGTERM, before)
    raise AssertionError(f"{main} parsed nothing")


# CONTRIBUTING, where it names what exists.

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


DESIGN = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", *DESIGN], ids=lambda path: path.stem)
def test_every_path_that_a_page_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w/]+\.(?:py|md|toml))`", text)
    library = ROOT / "vf_pipeline"
    places = [ROOT, library, *library.glob("*/"), *library.glob("training/*/"), ROOT / "flows"]
    paths = [name for name in named if not name.startswith("/")]  # those are routes of a server
    assert len(paths) >= 2
    assert [name for name in paths if not any((place / name).exists() for place in places)] == []


def test_every_decision_has_its_parts_its_place_in_the_index_and_its_number() -> None:
    index = (ROOT / "docs" / "design" / "README.md").read_text(encoding="utf-8")
    assert [path.name[:3] for path in DESIGN] == [f"{n + 1:03}" for n in range(len(DESIGN))]
    for path in DESIGN:
        text = path.read_text(encoding="utf-8")
        parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
        wanted = ["Context", "Decision", "Alternatives that lost", "Figures", "What holds it"]
        assert [part for part in parts if part in wanted] == wanted, path.name
        assert f"]({path.name})" in index
        assert 40 <= len(text.splitlines()) <= 70, path.name


def test_the_map_lists_the_rooms_in_their_order() -> None:
    table = CONTRIBUTING.split("## The rooms", 1)[1].split("## ", 1)[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    library = ROOT / "vf_pipeline"
    here = {p.stem for p in library.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert set(listed) == here - {"__init__"}
    assert listed == [room for room in rooms() if room in listed]


def rooms() -> list[str]:
    """Return ROOMS of test_imports.py, from the top of the house to its bottom."""
    text = (ROOT / "tests" / "packaging" / "test_imports.py").read_text(encoding="utf-8")
    return re.search(r'ROOMS = """(.*?)"""', text, re.DOTALL)[1].split()
