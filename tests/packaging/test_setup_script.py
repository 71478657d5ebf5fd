"""Set-up picks a CPU build of torch; whatever is missing is one line with a remedy."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module; what it makes goes to a temporary folder."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, path in {"VENV": ".venv", "STAMP": "setup.json", "LOG": "setup.log"}.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    return module


def find_python(**env: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts" / "find_python.sh")]
    clean = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)


def stub(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_python_that_is_named_is_used() -> None:
    done = find_python(PYTHON=sys.executable)
    assert (done.returncode, done.stdout.strip()) == (0, sys.executable)


def test_a_path_with_a_space_is_one_python(tmp_path: Path) -> None:
    python = stub(tmp_path, "my python", "echo 3.12")
    assert find_python(PYTHON=python).stdout.strip() == python


def test_an_old_python_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    done = find_python(PYTHON=stub(tmp_path, "python3", "echo Python 2.7.18"))
    assert done.returncode == 4
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "is 2.7" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_a_newer_python_on_the_path_is_found(tmp_path: Path) -> None:
    stub(tmp_path, "python3", "echo 3.9")
    stub(tmp_path, "python3.13", "exit 127")  # a shim without a Python behind it
    newer = stub(tmp_path, "python3.12", "echo 3.12")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sed", "head"):
        (tools / tool).symlink_to(next(Path("/").glob(f"*bin/{tool}")))
    assert find_python(PATH=f"{tmp_path}:{tools}").stdout.strip() == newer


def test_no_python_at_all_is_said() -> None:
    done = find_python(PATH="/nonexistent")
    assert done.returncode == 4
    assert "none is on PATH" in done.stderr


def test_a_local_cpu_wheel_wins_and_the_newest_of_them(script: ModuleType, tmp_path: Path) -> None:
    machine = platform.machine()
    for name in (
        f"torch-2.9.1+cpu-{TAG}-{TAG}-manylinux_2_28_{machine}.whl",
        f"torch-2.13.0+cpu-{TAG}-{TAG}-manylinux_2_28_{machine}.whl",
        f"torch-2.14.0+cpu-cp39-cp39-manylinux_2_28_{machine}.whl",
        f"torch-2.15.0+cu130-{TAG}-{TAG}-manylinux_2_28_{machine}.whl",
        f"torch-2.15.0+cpu-{TAG}-{TAG}-manylinux_2_28_other.whl",
    ):
        (tmp_path / name).touch()
    settings = {"find-links": [str(tmp_path)], "index-url": []}
    assert script.cpu_torch(settings) == ["torch==2.13.0+cpu"]


def test_without_a_local_wheel_torch_comes_from_the_cpu_index(
    script: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / f"torch-2.1.0+cpu-{TAG}-{TAG}-linux_{platform.machine()}.whl").touch()  # too old
    for folders in ([], [str(tmp_path)]):
        arguments = script.cpu_torch({"find-links": folders, "index-url": []})
        assert arguments == [script.TORCH, "--index-url", script.CPU_INDEX]


def test_pips_settings_are_read_and_the_environment_wins(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listing = (
        r":env:.index-url='http://127.0.0.1:9/simple'" "\n"
        r"global.extra-index-url='file:///elsewhere'" "\n"
        rf"global.find-links='\n{tmp_path}\n/nonexistent'" "\n"
        r"global.index-url='http://127.0.0.1:8/simple'" "\n"
    )  # fmt: skip
    python = stub(tmp_path, "python", f"cat <<'END'\n{listing}END")
    monkeypatch.setattr(script, "PYTHON", python)
    assert script.pip_settings() == {
        "find-links": [str(tmp_path)],
        "index-url": ["http://127.0.0.1:9/simple"],
    }


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("x\nERROR: Could not install: [Errno 28] No space left on device\n", "disk is full"),
        ("WARNING: Retrying … NewConnectionError('…')\nERROR: No matching\n", "PIP_INDEX_URL"),
        ("error: Failed to fetch\n  Caused by: dns error: failed to lookup\n", "no network"),
        ("/x/python: No module named pip\n", "rm -r .venv"),
        ("Collecting a\nERROR: No distribution for a>=9\nWARNING: b\n", "distribution for a>=9"),
    ],
)
def test_a_failed_installation_is_one_line(script: ModuleType, output: str, says: str) -> None:
    line = script.explain_failure(output, "the project", ["-e", "."])
    assert says in line
    assert "\n" not in line


def test_without_network_the_cpu_index_names_the_other_way(script: ModuleType) -> None:
    arguments = script.cpu_torch({"find-links": [], "index-url": []})
    line = script.explain_failure("Connection refused", "torch", arguments)
    assert "PIP_FIND_LINKS" in line


def test_too_little_disk_is_said_before_anything_is_made(
    script: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(script.SetupError, match=r"too little disk: .* about 1000000\.0 GB"):
        script.check_disk(tmp_path, 1_000_000.0)


@pytest.mark.parametrize(
    ("prints", "says"),
    [
        (
            "because ensurepip is not available. On Debian",
            "apt install python3",
        ),
        ("/x/python: No module named venv", "apt install python3"),
        ("Error: [Errno 13] Permission denied: .venv", "cannot make .venv: .*Permission denied"),
    ],
)
def test_a_python_that_cannot_make_environments_is_one_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prints: str, says: str
) -> None:
    python = stub(tmp_path, "python3", f"echo '{prints}'; exit 1")
    monkeypatch.setattr(script, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(script.SetupError, match=says):
        script.make_venv(uv=None)


def test_a_failed_installation_leaves_no_stamp(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".venv").mkdir()
    python = stub(tmp_path, "python", "case $2 in pip) echo 'ERROR: no wheel'; exit 1;; esac")
    monkeypatch.setattr(script, "PYTHON", Path(python))
    monkeypatch.setattr(script, "check_disk", lambda *_: None)
    with pytest.raises(script.SetupError, match=r"installing torch .* failed: no wheel"):
        script.install()
    assert script.read_stamp() == ""
    assert "ERROR: no wheel" in script.LOG.read_text()


def test_a_finished_set_up_does_nothing(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "PYTHON", Path(sys.executable))
    digest = script.wanted_digest([])
    script.write_stamp(digest)
    assert script.read_stamp() == digest

    def never(*_: object) -> None:
        raise AssertionError("it installed again")

    monkeypatch.setattr(script, "wanted_digest", lambda _: digest)
    monkeypatch.setattr(script, "install_step", never)
    script.install()


def test_a_damaged_stamp_means_installing_again(script: ModuleType) -> None:
    assert script.read_stamp() == ""
    for text in ("", "{", "[]", "{}"):
        script.STAMP.write_text(text)
        assert script.read_stamp() == ""


def test_a_changed_project_file_means_installing_again(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    project = tmp_path / "envs" / "a"
    project.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("a")
    (project / "pyproject.toml").write_text("b")
    digests = {script.wanted_digest([]), script.wanted_digest([project])}
    (project / "pyproject.toml").write_text("c")
    digests.add(script.wanted_digest([project]))
    assert len(digests) == 3
