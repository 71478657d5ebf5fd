import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_pipeline import storage
from vf_pipeline.errors import StorageError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_digests_do_not_depend_on_key_order(value: object) -> None:
    pair = {"a": value, "b": 1}
    assert storage.digest_json(pair) == storage.digest_json({"b": 1, "a": value})
    assert storage.digest_json(pair) != storage.digest_json({"a": value, "b": 2})


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    storage.write_text(target, "old")
    with pytest.raises(ZeroDivisionError), storage.atomic_path(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_replaces_a_folder(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with storage.atomic_path(tmp_path / "model") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
    assert os.listdir(tmp_path / "model") == ["two"]
    assert os.listdir(tmp_path) == ["model"]


def test_memory_uris_are_files_too() -> None:
    storage.write_json("memory://run/result.json", {"reward": 0.5})
    assert storage.read_json("memory://run/result.json") == {"reward": 0.5}
    assert storage.exists("memory://run/result.json")


def test_a_file_that_may_not_grow_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "from vf_pipeline import storage\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    storage.write_bytes(sys.argv[1], b'x' * 5000)\n"
        "except storage.StorageError as error:\n"
        "    sys.exit(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"cannot write {tmp_path / 'file'}" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_its_remedy() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    error = storage.explain_os_error(full, "write", "/runs/x")
    assert str(error).startswith("cannot write /runs/x: No space left on device (the disk is full")
    assert isinstance(error, StorageError)
