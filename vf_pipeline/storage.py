"""The only door to files: local paths, ``s3://`` and ``memory://``; digests and atomic publishing.

Deliberately lacks a client of its own: fsspec speaks to every store. A local file is written
beside its place and renamed into it, so that a reader sees the old file or the new one.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf_pipeline.errors import PrerequisiteError, StorageError

_CHUNK = 1 << 20


def is_remote(uri: str | Path) -> bool:
    """Return whether a URI names a store other than the local disk."""
    return "://" in str(uri) and not str(uri).startswith("file://")


def local_path(uri: str | Path) -> Path:
    """Return the local path of a URI.

    Raises:
        StorageError: the URI is remote.
    """
    if is_remote(uri):
        raise StorageError(f"{uri} is not on this disk", "give a local folder")
    return Path(str(uri).removeprefix("file://"))


def join(uri: str | Path, *parts: str) -> str:
    """Return the URI of something inside a folder."""
    return "/".join([str(uri).rstrip("/"), *parts])


def read_bytes(uri: str | Path) -> bytes:
    """Return a file's content.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    try:
        if is_remote(uri):
            with _fsspec_open(str(uri), "rb") as file:
                return bytes(file.read())
        return local_path(uri).read_bytes()
    except OSError as error:
        raise _explain(error, "read", uri) from error


def read_json(uri: str | Path) -> Any:
    """Return a JSON file's content.

    Raises:
        StorageError: the file is missing, or no JSON.
    """
    try:
        return json.loads(read_bytes(uri))
    except ValueError as error:
        raise StorageError(f"{uri} is not valid JSON: {error}", "delete it and run again") from None


def exists(uri: str | Path) -> bool:
    """Return whether a file or folder is there."""
    if is_remote(uri):
        fs, path = _filesystem(str(uri))
        return bool(fs.exists(path))
    return local_path(uri).exists()


def write_bytes(uri: str | Path, data: bytes) -> None:
    """Write a file whole or not at all; folders on the way are made.

    Raises:
        StorageError: there is no space, or no permission.
    """
    try:
        if is_remote(uri):
            # S3 shows an object once it is uploaded, whole: no rename is needed.
            with _fsspec_open(str(uri), "wb") as file:
                file.write(data)
            return
        with atomic_path(uri) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise _explain(error, "write", uri) from error


def write_text(uri: str | Path, text: str) -> None:
    """Write a UTF-8 text file whole or not at all."""
    # Half surrogates (an emoji cut by a token limit) are kept; json.loads reads them back.
    write_bytes(uri, text.encode("utf-8", errors="surrogatepass"))


def write_json(uri: str | Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(uri, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextmanager
def atomic_path(uri: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``uri`` that is renamed into place when the block succeeds.

    The block writes a file or makes a folder there; on an error it is removed again.

    Raises:
        StorageError: there is no space, or no permission.
    """
    target = local_path(uri)
    # Beside the target, for a rename is atomic within one file system only; with the pid, for two
    # processes may write the same file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        # On the disk before it has its name: after a power cut the name must not hold an empty
        # file.
        _sync(temporary)
        # A rename replaces no folder that holds something: for a moment there is none.
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    except OSError as error:
        raise _explain(error, "write", uri) from error
    finally:
        _remove(temporary)


def remove(uri: str | Path) -> None:
    """Remove a local file or folder, if it is there."""
    _remove(local_path(uri))


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value: the same for equal values, whatever the key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return digest_bytes(text.encode("utf-8", errors="surrogatepass"))


def digest_bytes(data: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256 of some bytes."""
    # 64 bits: enough against chance, short enough to read in names and diffs.
    return hashlib.sha256(data).hexdigest()[:16]


def digest_files(paths: list[Path]) -> str:
    """Return one digest over the names and contents of files, in the order given.

    Raises:
        StorageError: a file cannot be read.
    """
    total = hashlib.sha256()
    for path in paths:
        # The zero byte, which no name can hold, ends the name.
        total.update(path.name.encode() + b"\0")
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    total.update(chunk)
        except OSError as error:
            raise _explain(error, "read", path) from error
    return total.hexdigest()[:16]


def free_bytes(path: str | Path) -> int:
    """Return the free space of the disk that holds a path, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def explain_os_error(error: OSError, doing: str, uri: str | Path) -> StorageError:
    """Return an OSError as one line with a remedy."""
    return _explain(error, doing, uri)


def _explain(error: OSError, doing: str, uri: str | Path) -> StorageError:
    # By errno: ENOSPC, EDQUOT, EROFS, EACCES, ENOENT.
    remedies = {
        28: "the disk is full: free some space, then run the same command again",
        122: "the disk quota is used up: free some space, then run the same command again",
        30: "the file system is read-only",
        13: "permission denied: choose a folder you may write to",
        2: "it does not exist",
    }
    remedy = remedies.get(error.errno or 0, "")
    return StorageError(f"cannot {doing} {uri}: {error.strerror or error}", remedy)


def _sync(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _remove(path: Path) -> None:
    # A link to a folder is removed itself, never what it points to.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _filesystem(uri: str) -> tuple[Any, str]:
    try:
        # When used: local files need none of it.
        import fsspec

        fs, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise PrerequisiteError(f"cannot open {uri}: {error}", "pip install s3fs") from error
    return fs, path


def _fsspec_open(uri: str, mode: str) -> Any:
    fs, path = _filesystem(uri)
    return fs.open(path, mode)
