"""Start children that the kernel ends with their parent.

On Linux a child asks the kernel to be killed when its parent's *thread* ends (PR_SET_PDEATHSIG).
Children are therefore started from one thread that lives as long as this process, never from the
caller's: a stage may run in a thread that ends before its server should. A small guard runs before
the child's own program, makes the request, and checks that the parent was not gone already. It is
a program of its own rather than a preexec_fn, which may deadlock in a process with threads.
"""

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import IO

from vf_pipeline.errors import ProcessError

_SPAWN_WAIT_S = 60.0

# 1 is PR_SET_PDEATHSIG, 9 SIGKILL; the request lasts over exec. A parent that ended before it was
# made is seen by getppid(), which then names whoever adopts orphans.
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


class Spawner:
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
    # Isolated and without site: a guard that starts in milliseconds, whatever PYTHONPATH holds.
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *cmd]


SPAWNER = Spawner()
