"""Child processes that end with their parent, whatever ends it.

On Linux a child asks the kernel to be killed when its parent's *thread* ends (PR_SET_PDEATHSIG).
Children are therefore started from one thread that lives as long as this process, never from the
caller's: a stage may run in a thread that ends before its server should. A small guard runs before
the child's own program, makes the request, and checks that the parent was not gone already. It is
a program of its own rather than a preexec_fn, which may deadlock in a process with threads.

What the kernel does not reach (a child's own children, after a SIGKILL of this process) is found
by ``reap``: every child carries a tag in its environment, which its descendants inherit.
"""

import json
import logging
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from vf_pipeline import storage
from vf_pipeline.errors import PrerequisiteError, ProcessError, StorageError
from vf_pipeline.serving.process_tree import end_tree, find_tree, started_at

logger = logging.getLogger(__name__)

TAG_VAR = "VF_PROCESS_TAG"
_GRACE_S = 20.0
_TAIL_LINES = 20
_TAIL_BYTES = 8192
_SPAWN_WAIT_S = 60.0

_GUARD = """
import ctypes, os, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != parent:
    sys.exit("the parent process is gone")
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot run {command[0]}: {error.strerror}")
"""


class ManagedProcess:
    """A child process as a context manager: started, awaited, watched, ended with all below it.

    Args:
        name: what it is called in messages.
        cmd: program and arguments.
        log_path: file that its output is appended to.
        env: variables over those of this process.
        ready_url: URL that answers 200 once the process is ready; None: ready at once.
        ready_timeout_s: how long that may take, in seconds.
        record: JSON file in which the process is noted while it runs, for ``reap``.
        grace_s: how long it may take to end after SIGTERM, in seconds, before SIGKILL.
    """

    def __init__(
        self,
        name: str,
        cmd: Sequence[str],
        *,
        log_path: str | Path,
        env: Mapping[str, str] | None = None,
        ready_url: str | None = None,
        ready_timeout_s: float = 180.0,
        record: str | Path | None = None,
        grace_s: float = _GRACE_S,
    ) -> None:
        self.name = name
        self.cmd = [str(part) for part in cmd]
        self.log_path = Path(log_path)
        self._env = dict(env or {})
        self._ready_url = ready_url
        self._ready_timeout_s = ready_timeout_s
        self._record = Path(record) if record is not None else None
        self._grace_s = grace_s
        self._tag = uuid.uuid4().hex
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ManagedProcess":
        """Start the process and wait until it is ready."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process and all below it."""
        self.stop()

    @property
    def pid(self) -> int:
        """The process id, or 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            PrerequisiteError: there is no such program.
            ProcessError: it died, or was not ready in time; it is ended then.
        """
        if shutil.which(self.cmd[0]) is None:
            raise PrerequisiteError(f"cannot start {self.name}: no program {self.cmd[0]!r}")
        with self._open_log() as log:
            self._log_start = log.tell()
            environment = {**os.environ, **self._env, TAG_VAR: self._tag}
            self._process = _SPAWNER.spawn(self.cmd, log, environment)
        try:
            self._note()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raise if the process has died.

        Raises:
            ProcessError: with the exit code and the last lines of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            raise self._death("died")

    def wait(self, timeout: float) -> int:
        """Wait for the process to end by itself; return its exit code (negative: the signal).

        Raises:
            ProcessError: it still runs after ``timeout`` seconds.
        """
        if self._process is None:
            raise ProcessError(f"{self.name} was not started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessError(
                f"{self.name} (pid {self.pid}) still runs after {timeout:.0f} s",
                f"its log is {self.log_path}",
            ) from None

    def stop(self) -> None:
        """End the process and all below it: SIGTERM, a grace period, SIGKILL. Idempotent."""
        if self._process is None:
            return
        stubborn = end_tree(find_tree(self.pid, TAG_VAR, self._tag), self._grace_s, self._process)
        if stubborn:
            logger.warning("%s: %d processes had to be killed", self.name, stubborn)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        self._forget()

    def log_tail(self) -> str:
        """Return the last lines that this process wrote."""
        try:
            with self.log_path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - _TAIL_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def _open_log(self) -> IO[bytes]:
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            return self.log_path.open("ab")
        except OSError as error:
            raise storage.explain_os_error(error, "write", self.log_path) from error

    def _wait_until_ready(self) -> None:
        if self._ready_url is None:
            return
        deadline = time.monotonic() + self._ready_timeout_s
        pause = 0.05
        while True:
            ready = answers(self._ready_url)
            # First whether it lives: another program may answer at its address.
            if not self.running:
                raise self._death("died before it was ready")
            if ready:
                return
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"{self.name} was not ready at {self._ready_url} within "
                    f"{self._ready_timeout_s:.0f} s; its log ends with:\n{self.log_tail()}",
                    f"see {self.log_path}",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _death(self, what: str) -> ProcessError:
        code = self._process.poll() if self._process is not None else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        tail = self.log_tail()
        ending = f"; its log ends with:\n{tail}" if tail else " and logged nothing"
        return ProcessError(f"{self.name} {what} ({how}){ending}", f"see {self.log_path}")

    def _note(self) -> None:
        if self._record is None:
            return
        noted = _Noted(self.name, self.pid, started_at(self.pid), self._tag)
        with _RECORD_LOCK:
            _write_record(self._record, [*_read_record(self._record), noted])

    def _forget(self) -> None:
        if self._record is None:
            return
        with _RECORD_LOCK, suppress(StorageError):
            kept = [noted for noted in _read_record(self._record) if noted.tag != self._tag]
            _write_record(self._record, kept)


def reap(record: str | Path) -> int:
    """End the processes noted in a record that are still alive; return how many were.

    Only for records whose run nobody works on: the caller holds the run's lock.
    """
    path = Path(record)
    ended = 0
    with _RECORD_LOCK:
        for noted in _read_record(path):
            tree = find_tree(noted.pid, TAG_VAR, noted.tag, noted.started_at)
            if tree:
                logger.warning("ending %s (pid %d), left behind", noted.name, noted.pid)
                end_tree(tree, grace_s=5.0)
                ended += 1
        path.unlink(missing_ok=True)
    return ended


def free_port() -> int:
    """Return a loopback TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class _Noted:
    """A process in a record; its start time tells it from a later one with the same id."""

    name: str
    pid: int
    started_at: float
    tag: str


_RECORD_LOCK = threading.Lock()


def _read_record(path: Path) -> list[_Noted]:
    try:
        return [_Noted(**fields) for fields in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        logger.warning("%s cannot be read; processes noted there may still run", path)
        return []


def _write_record(path: Path, entries: Sequence[_Noted]) -> None:
    if entries:
        storage.write_json(path, [asdict(noted) for noted in entries])
    else:
        path.unlink(missing_ok=True)


class _Spawner:
    """Starts children from one thread that lives as long as the process."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[
            tuple[list[str], IO[bytes], dict[str, str], Future[subprocess.Popen[bytes]]]
        ] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pid = 0

    def spawn(
        self, cmd: list[str], log: IO[bytes], env: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a program; output goes to ``log``."""
        with self._lock:
            # A fork has our memory but not our threads.
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._orders = queue.SimpleQueue()
                threading.Thread(target=self._run, name="vf-spawner", daemon=True).start()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((cmd, log, env, done))
        return done.result(timeout=_SPAWN_WAIT_S)

    def _run(self) -> None:
        orders = self._orders
        while True:
            cmd, log, env, done = orders.get()
            try:
                done.set_result(
                    subprocess.Popen(
                        _guarded(cmd),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=env,
                        # Ctrl-C in a terminal is for us: a child that got it too would be gone
                        # while it is still needed to end well.
                        start_new_session=True,
                    )
                )
            except Exception as error:
                done.set_exception(ProcessError(f"cannot start {cmd[0]}: {error}"))


def _guarded(cmd: list[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        return cmd
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *cmd]


_SPAWNER = _Spawner()


def answers(url: str) -> bool:
    """Return whether a server on this machine answers a GET with 200."""
    # No proxy: the addresses are this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
