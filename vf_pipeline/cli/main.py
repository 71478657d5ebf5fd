"""What all commands share: how an error becomes one line on stderr and an exit code.

0 ok · 1 failed · 2 usage or config · 3 gate not passed · 4 missing prerequisite · 130 interrupted.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from vf_pipeline.errors import VfError

INTERRUPTED = 130
_REPEAT_AFTER_S = 10.0


def run_cli(command: Callable[[], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors become one line on stderr.

    The traceback is shown with ``--debug`` among the arguments, or with $VF_DEBUG set. SIGTERM
    ends the command the way Ctrl-C does, so that the processes it started are ended as well.

    Args:
        command: does the work; None stands for success.
        argv: the arguments it was called with; those of this process when absent.
    """
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments or bool(os.environ.get("VF_DEBUG"))
    _raise_on_sigterm()
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except VfError as error:
        _say(f"error: {error}", debug)
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted: finished results are kept, the same command goes on from them", debug)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (| head): not worth a word. What Python flushes at its
        # exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        text = " ".join(str(error).split())
        hint = "" if debug else " (--debug shows where)"
        _say(f"error: {type(error).__name__}: {text}{hint}", debug)
        return 1


def log_to_stderr(verbose: bool) -> None:
    """Send logs to stderr: everything when verbose, otherwise warnings, none of them in floods.

    Sixty-four requests that wait for one server have one thing to say, not sixty-four.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if not verbose:
        handler.addFilter(_NoFloods())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


class _NoFloods(logging.Filter):
    """Lets a kind of message through once in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.name, str(record.msg)
        now = time.monotonic()
        if now - self._shown.get(kind, -_REPEAT_AFTER_S) < _REPEAT_AFTER_S:
            return False
        self._shown[kind] = now
        return True


def _say(text: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    sys.stderr.write(text + "\n")


def _raise_on_sigterm() -> None:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
