"""Makes .venv, installs the project, fetches the model; a second run finds everything done.

Run by ``make setup``. Needs the standard library only, and keeps to the syntax of Python 3.6, so
that an old Python gets as far as the line that says so.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts this may have another Python
    sys.exit(
        f"error: Python 3.11 or newer is needed, this is {platform.python_version()}: "
        "make setup PYTHON=/path/to/python3.11"
    )

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
LOG = VENV / "setup.log"

MODEL = "smollm2-135m"
EXTRAS = "pipeline,train,envs,dev"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH = "torch>=2.9,<3"
OLDEST_TORCH = (2, 9, 0)

NEEDED_GB = {"cpu": 3.0, "gpu": 9.0}
INSTALL_TIMEOUT_S = 3600
VENV_TIMEOUT_S = 300
PROBE_TIMEOUT_S = 30
MODEL_TIMEOUT_S = 1800
HEARTBEAT_S = 30

CAPTURE = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|Max retries exceeded|ProxyError"
    r"|Connection refused|Network is unreachable|Name or service not known|No route to host"
    r"|Temporary failure in name resolution|dns error|error sending request|tcp connect error"
)


class SetupError(Exception):
    """What is missing, and the remedy, in one line."""


def main():
    """Return the exit status: 0 ready, 4 something is missing, 130 interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended, too
    try:
        install()
        fetch_model()
    except SetupError as error:
        say(f"error: {error}")
        return 4
    except KeyboardInterrupt:
        say("interrupted: run `make setup` again, it goes on where it stopped")
        return 130
    return 0


def install():
    """Install what the stamp does not vouch for."""
    projects = sorted(path.parent for path in (ROOT / "envs").glob("*/pyproject.toml"))
    digest = wanted_digest(projects)
    if read_stamp() == digest and starts(PYTHON):
        return
    started = time.monotonic()
    gpu = has_gpu()
    check_disk(ROOT, NEEDED_GB["gpu" if gpu else "cpu"] - size_gb(VENV))
    uv = shutil.which("uv")
    make_venv(uv)
    LOG.write_text("")
    settings = pip_settings()
    torch = cpu_torch(settings) if sys.platform == "linux" and not gpu else [TORCH]
    steps = [
        (f"torch ({'CUDA' if gpu else 'CPU'} build)", torch),
        ("vf-pipeline and what it needs", ["-e", f"{ROOT}[{EXTRAS}]"]),
    ]
    if projects:
        editable = [part for project in projects for part in ("-e", str(project))]
        steps.append(("the environments in envs/", ["--no-deps", *editable]))
    for number, (what, arguments) in enumerate(steps, start=1):
        say(f"installing {number}/{len(steps)} {what} …")
        install_step(what, arguments, uv, settings)
    write_stamp(digest)
    say(f"installed in {time.monotonic() - started:.0f} s")


def fetch_model():
    """Fetch and convert the weights, unless the cache has them."""
    command = [str(PYTHON), "-m", "vf_pipeline.models", MODEL]
    if run(command, MODEL_TIMEOUT_S, "fetching the model", stdout=subprocess.DEVNULL).returncode:
        raise SetupError(f"the model {MODEL} is not ready, for the reason above")


def make_venv(uv):
    """Make .venv, with pip in it, unless a working one is there."""
    if starts(PYTHON):
        return
    say(f"making .venv with Python {platform.python_version()}")
    if uv:
        command = [uv, "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, VENV]
    else:
        command = [sys.executable, "-m", "venv", "--clear", VENV]
    done = run(command, VENV_TIMEOUT_S, "making .venv", **CAPTURE)
    if done.returncode == 0 and starts(PYTHON):
        return
    shutil.rmtree(str(VENV), ignore_errors=True)
    if "ensurepip" in done.stdout or "No module named venv" in done.stdout:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise SetupError(
            f"this Python cannot make virtual environments: apt install {package} "
            "(Debian, Ubuntu), then run `make setup` again"
        )
    raise SetupError(f"cannot make .venv: {last_error(done.stdout)}")


def install_step(what, arguments, uv, settings):
    """Run one installation; all that the installer prints goes to the log."""
    env = dict(os.environ)
    if uv:
        command = [uv, "pip", "install", "--python", str(PYTHON), *arguments]
        # uv reads none of pip's settings; what matters of them is handed on
        if settings["find-links"]:
            env.setdefault("UV_FIND_LINKS", ",".join(settings["find-links"]))
        if settings["index-url"]:
            env.setdefault("UV_DEFAULT_INDEX", settings["index-url"][0])
    else:
        quiet = ["--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
        command = [str(PYTHON), "-m", "pip", "install", *quiet, *arguments]
    offset = LOG.stat().st_size
    if run_logged(command, env, what):
        with LOG.open("rb") as file:
            file.seek(offset)
            output = file.read().decode("utf-8", "replace")
        raise SetupError(explain_failure(output, what, arguments))


def run_logged(command, env, what):
    """Return the command's exit status; it is ended when it takes too long or we are ended."""
    started = time.monotonic()
    with LOG.open("ab") as log:
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        child = subprocess.Popen(
            command, cwd=str(ROOT), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while True:
                try:
                    return child.wait(timeout=HEARTBEAT_S)
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - started
                if elapsed > INSTALL_TIMEOUT_S:
                    raise SetupError(f"installing {what} took more than {elapsed:.0f} s: see {LOG}")
                say(f"  … {elapsed:.0f} s")
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def explain_failure(output, what, arguments):
    """Return why an installer failed, in one line, with the remedy."""
    again = "then run `make setup` again"
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return f"the disk is full while installing {what}: free some space, {again}"
    if NO_NETWORK.search(output) and CPU_INDEX in arguments:
        return (
            f"no network: {CPU_INDEX} cannot be reached: connect, or put a CPU wheel of torch for "
            f"this Python into a folder and set PIP_FIND_LINKS to it, {again}"
        )
    if NO_NETWORK.search(output):
        return (
            f"no network: the package index cannot be reached for {what}: connect, or set "
            f"PIP_INDEX_URL to a mirror, {again}"
        )
    if "No module named pip" in output:
        return f".venv has no pip: rm -r .venv, {again}"
    return f"installing {what} failed: {last_error(output)} (the whole log: {LOG})"


def last_error(output):
    """Return the last line that names an error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(error|×|.*Error:)", line, re.IGNORECASE)]
    chosen = (named or lines or ["it printed nothing"])[-1]
    return re.sub(r"^(error:|×)\s*", "", chosen, flags=re.IGNORECASE)


def cpu_torch(settings):
    """Return what to install for a CPU build of torch: a local wheel, else from the CPU index."""
    version = local_cpu_build(settings["find-links"])
    return [f"torch=={version}"] if version else [TORCH, "--index-url", CPU_INDEX]


def local_cpu_build(folders):
    """Return the newest torch that lies in a folder as a CPU wheel for this Python, or ""."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = re.compile(rf"torch-((\d+)\.(\d+)\.(\d+)\+cpu)-{tag}-{tag}-\w*{platform.machine()}\.whl")
    found = []
    for folder in folders:
        for path in Path(folder).glob("torch-*.whl"):
            match = name.fullmatch(path.name)
            if match:
                numbers = tuple(int(part) for part in match.groups()[1:])
                found.append((numbers, match.group(1)))
    newest = max(found, default=((0,), ""))
    return newest[1] if newest[0] >= OLDEST_TORCH else ""


def pip_settings():
    """Return pip's index-url and the folders of its find-links, from its files and environment."""
    done = run([str(PYTHON), "-m", "pip", "config", "list"], PROBE_TIMEOUT_S, "pip", **CAPTURE)
    settings = {}
    for line in done.stdout.splitlines():
        match = re.match(r"\S+\.(find-links|index-url)='(.*)'$", line)
        if match:  # the environment, which wins, is listed first
            values = match.group(2).replace("\\n", " ").split()
            settings.setdefault(match.group(1), values)
    links = [link.replace("file://", "", 1) for link in settings.get("find-links", [])]
    return {
        "find-links": [link for link in links if Path(link).is_dir()],
        "index-url": settings.get("index-url", []),
    }


def has_gpu():
    """Return whether an NVIDIA GPU can be used."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    if not shutil.which("nvidia-smi"):
        return False
    listing = run(["nvidia-smi", "-L"], PROBE_TIMEOUT_S, "nvidia-smi", **CAPTURE)
    return listing.returncode == 0 and "GPU" in listing.stdout


def check_disk(place, needed_gb):
    """Refuse to start what cannot end."""
    free_gb = shutil.disk_usage(str(place)).free / 1e9
    if free_gb < needed_gb:
        raise SetupError(
            f"too little disk: {free_gb:.1f} GB are free at {place}, about {needed_gb:.1f} GB are "
            "needed: free some space, then run `make setup` again"
        )


def size_gb(folder):
    """Return the size of what lies in a folder, in GB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e9


def starts(python):
    """Return whether an interpreter runs and is new enough."""
    if not python.exists():
        return False
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return run([str(python), "-S", "-c", check], PROBE_TIMEOUT_S, ".venv").returncode == 0


def run(command, timeout_s, what, **options):
    """Return a finished command, which had no input and a bounded time."""
    try:
        return subprocess.run(
            [str(part) for part in command],
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            **options,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"{what} took more than {timeout_s} s: run `make setup` again") from None
    except OSError as error:
        raise SetupError(f"{what}: cannot run {command[0]}: {error.strerror}") from None


def wanted_digest(projects):
    """Return the digest of all that decides what gets installed, the checkout's place included."""
    total = hashlib.sha256(str(ROOT).encode())
    for folder in [ROOT, *projects]:
        path = folder / "pyproject.toml"
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def read_stamp():
    """Return the digest of what was installed, or "" when that never came to its end."""
    try:
        return json.loads(STAMP.read_text())["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write_stamp(digest):
    """Remember what was installed, in one step."""
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps({"digest": digest}) + "\n")
    partial.replace(STAMP)


def say(line):
    """Print a line for the person who waits."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
