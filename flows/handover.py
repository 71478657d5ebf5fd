"""What a stage on a pool hands back to its chain: one file in the run's folder, outputs or error.

    chain removes the file ──► stage runs on a worker ──► writes outputs | error ──► chain reads it

Deliberately knows nothing of Prefect: its states carry a message, not what kind of error it was,
and the exit code of the chain follows from the kind.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf_pipeline import errors, storage
from vf_pipeline.errors import ProcessError, VfError

log = logging.getLogger(__name__)


def handover_path(folder: Path, stage: str) -> Path:
    """Return the file of a stage in its run's folder."""
    return folder / "stages" / f"{stage}.json"


def write_outputs(folder: Path, stage: str, key: str, outputs: dict[str, Any]) -> None:
    """Hand over what a stage made, and the key of the inputs that it was made of."""
    storage.write_json(handover_path(folder, stage), {"key": key, "outputs": outputs})


@contextmanager
def error_handed_over(folder: Path, stage: str, flow_run: str) -> Iterator[None]:
    """Hand over the error that ends the block, and raise it on.

    Args:
        folder: the run's folder.
        stage: the stage.
        flow_run: id of the stage's own flow run, which tells this try from others.
    """
    try:
        yield
    except VfError as error:
        words = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        try:
            if folder.is_dir():
                handed = {"flow_run": flow_run, "error": words}
                storage.write_json(handover_path(folder, stage), handed)
        except VfError as second:
            # A full disk may be why the stage failed; the chain learns less then, not nothing.
            log.warning("cannot hand over why the stage failed: %s", second)
        raise


def read_outputs(folder: Path, stage: str, key: str) -> dict[str, Any]:
    """Return what a stage has made.

    Raises:
        ProcessError: of other inputs than those that the key stands for.
        StorageError: there is nothing.
    """
    handed = storage.read_json(handover_path(folder, stage))
    if handed.get("key") != key:
        raise ProcessError("it returned the result of other inputs", "run again with --fresh")
    return dict(handed["outputs"])


def read_error(folder: Path, stage: str, flow_run: str) -> VfError | None:
    """Return the error that a stage handed over in this very try, as the class that it was there.

    A class that is not in the error tree becomes a ProcessError; without a file it is None.
    """
    path = handover_path(folder, stage)
    try:
        handed = storage.read_json(path) if path.exists() else {}
        # A stage that a killed chain has left may write here after this try has begun.
        if handed.get("flow_run") != flow_run:
            return None
        words = handed["error"]
        return _error_of(str(words["kind"]), str(words["message"]), str(words["hint"]))
    except (VfError, KeyError, TypeError, AttributeError):
        return None


def _error_of(kind: str, message: str, hint: str) -> VfError:
    found = getattr(errors, kind, None)
    known = isinstance(found, type) and issubclass(found, VfError)
    # Some classes make their message of other arguments: it is ready here, so that is passed by.
    error = ProcessError.__new__(found if known else ProcessError)
    VfError.__init__(error, message, hint)
    return error
