"""Children end with their parent, whatever ends it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from vf_pipeline.errors import PrerequisiteError, ProcessError
from vf_pipeline.processes import ManagedProcess, free_port, reap

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(__import__("os").getpid()))
time.sleep(60)
"""
WITH_CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]])
time.sleep(float(sys.argv[3]))
"""


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.Error:
            return True
        time.sleep(0.01)
    return False


def test_it_runs_logs_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import os; print(os.environ['X']); raise SystemExit(3)"]
    process = ManagedProcess("job", command, log_path=tmp_path / "a" / "log", env={"X": "hello"})
    with process:
        assert process.wait(10) == 3
        with pytest.raises(ProcessError, match=r"job died \(exit code 3\).*\nhello"):
            process.check()
    assert process.log_tail() == "hello"


def test_a_child_that_dies_before_it_is_ready_shows_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("from an earlier run\n")
    command = [sys.executable, "-S", "-c", "print('cannot bind'); raise SystemExit(1)"]
    url = f"http://127.0.0.1:{free_port()}/health"
    with (
        pytest.raises(ProcessError, match=r"(?s)before it was ready.*cannot bind") as caught,
        ManagedProcess("server", command, log_path=log, ready_url=url),
    ):
        pass
    assert "earlier" not in str(caught.value)


def test_a_child_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/health"
    process = ManagedProcess(
        "server", SLEEP, log_path=tmp_path / "log", ready_url=url, ready_timeout_s=0.3
    )
    with pytest.raises(ProcessError, match="not ready at http"):
        process.start()
    assert not process.running


def test_waiting_is_bounded_and_a_missing_program_is_named(tmp_path: Path) -> None:
    with (
        ManagedProcess("sleeper", SLEEP, log_path=tmp_path / "log") as process,
        pytest.raises(ProcessError, match="still runs after"),
    ):
        process.wait(0.05)
    with pytest.raises(PrerequisiteError, match="no-such-program"):
        ManagedProcess("x", ["no-such-program"], log_path=tmp_path / "log").start()


def test_stop_ends_a_grandchild_that_ignores_sigterm(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = [sys.executable, "-S", "-c", WITH_CHILD, STUBBORN, str(mark), "60"]
    with ManagedProcess("parent", command, log_path=tmp_path / "log", grace_s=0.3) as process:
        grandchild = wait_for(mark)
        assert psutil.pid_exists(grandchild)
        parent = process.pid
    assert gone(grandchild)
    assert gone(parent)


def test_stop_finds_a_grandchild_whose_parent_is_gone(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = [sys.executable, "-S", "-c", WITH_CHILD, STUBBORN, str(mark), "0"]
    with ManagedProcess("parent", command, log_path=tmp_path / "log", grace_s=0.2) as process:
        grandchild = wait_for(mark)
        process.wait(10)
        assert psutil.Process(grandchild).ppid() != process.pid
    assert gone(grandchild)


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from vf_pipeline.processes import ManagedProcess\n"
        f"p = ManagedProcess('child', {SLEEP!r}, log_path={str(tmp_path / 'log')!r})\n"
        "p.start()\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.send_signal(signal.SIGKILL)
        assert gone(child)


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    process = ManagedProcess("sleeper", SLEEP, log_path=tmp_path / "log")
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join(10)
    time.sleep(0.3)
    assert process.running
    process.stop()
    process.stop()
    assert not process.running


def test_the_record_names_what_runs_and_reap_ends_it(tmp_path: Path) -> None:
    record = tmp_path / "processes.json"
    with ManagedProcess("a", SLEEP, log_path=tmp_path / "log", record=record) as process:
        assert str(process.pid) in record.read_text()
        assert reap(record) == 1
        assert gone(process.pid)
        assert not record.exists()
    assert not record.exists()
    assert reap(record) == 0


def test_reap_passes_over_a_later_process_with_the_same_id(tmp_path: Path) -> None:
    record = tmp_path / "processes.json"
    own = psutil.Process(os.getpid())
    with subprocess.Popen(SLEEP) as other:
        noted = f'"pid": {other.pid}, "started_at": {own.create_time() - 1000}, "tag": "none"'
        record.write_text(f'[{{"name": "old", {noted}}}]')
        assert reap(record) == 0
        assert other.poll() is None
        other.kill()
    record.write_text("garbage")
    assert reap(record) == 0
