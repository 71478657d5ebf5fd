"""What a store missed, kept on disk, and sent when the store is back.

    no file ──append──► records wait ──replay──► front batch sent ──► front batch dropped
       ▲                 │  ▲  ▲ ▲                    │                       │  │
       │          append └──┘  │ └── no answer ───────┘                       │  │
       │                       └──── more waits, or no time is left ──────────┘  │
       └──────────────────────────── nothing is left ────────────────────────────┘

A tracker that ends leaves the file to ``replay_leftovers`` of a later one. Records leave the file
after they were sent, so that a kill in between sends one batch twice and loses nothing; MLflow
recognizes what it has by name, step and time. Two locks beside the file: one for the moments in
which it is written, one for whoever sends. Several processes may have the same run open (a stage
and the child that trains for it).
"""

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vf_pipeline import storage
from vf_pipeline.errors import VfError
from vf_pipeline.tracking.records import Record
from vf_pipeline.tracking.sender import METRICS_PER_CALL, Sender
from vf_pipeline.tracking.store import is_refused, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

_WRITE_WAIT_S = 10.0
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NEEDED = {
    "params": {"values"},
    "metrics": {"values", "step"},
    "artifact": {"path", "folder"},
    "dataset": {"values", "name", "context"},
    "tags": {"values"},
    "close": {"status"},
}
"""What a record of each kind holds besides its time."""


class Spool:
    """The spool of one run.

    Args:
        path: the file; it is there only while it holds records.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._warned = False

    @property
    def pending(self) -> bool:
        """Whether records wait to be sent."""
        return self.path.exists()

    def append(self, record: Record) -> None:
        """Append a record; a disk that refuses it is reported once and never raises."""
        try:
            line = json.dumps(record, ensure_ascii=True, default=str).encode()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A lock that is not to be had in time is a TimeoutError, and so an OSError as well.
            with _locked(self.path.parent, "write", _WRITE_WAIT_S), self.path.open("ab+") as file:
                # An end for what a killed writer left torn: else this record would be part of that
                # line.
                file.write((b"\n" if _is_torn(file) else b"") + line + b"\n")
        except (OSError, ValueError, TypeError) as error:
            if not self._warned:
                self._warned = True
                logger.warning("cannot write %s, metrics are not kept: %s", self.path, error)

    def replay(self, sender: Sender, *, seconds: float, wait_s: float = 0.0) -> bool:
        """Send what is in the file, in order; return whether nothing is left.

        Args:
            sender: the way to the run.
            seconds: how long it may take; the rest is left for the next time.
            wait_s: how long to wait for another process that sends from this folder.

        Raises:
            Exception: what mlflow raises when the store does not answer; the rest stays.
        """
        if not self.pending:
            return True
        with ExitStack() as stack:
            try:
                # The send lock first, the write lock for moments within it; appending takes that
                # one alone. So nobody who writes waits for a store.
                stack.enter_context(_locked(self.path.parent, "send", wait_s))
            except TimeoutError:
                return False
            return self._send(sender, time.monotonic() + seconds)

    def _send(self, sender: Sender, deadline: float) -> bool:
        sender.check_run()
        # Read again after each round: other processes append meanwhile, under the write lock that
        # is free while the store is waited for.
        while data := self._read():
            for size, records in _batches(data):
                if records:
                    sender.send_what_is_taken(records)
                # What stands in front is still what was sent: only the holder of the send lock
                # drops.
                self._drop(size)
                if time.monotonic() > deadline:
                    return not self.pending
        return True

    def _read(self) -> bytes:
        with _locked(self.path.parent, "write", _WRITE_WAIT_S):
            return self.path.read_bytes() if self.pending else b""

    def _drop(self, size: int) -> None:
        """Take the first bytes out of the file; without any left it goes."""
        with _locked(self.path.parent, "write", _WRITE_WAIT_S):
            # The rest is written beside the file and renamed: a kill leaves the old file or the
            # new.
            rest = self.path.read_bytes()[size:]
            if rest:
                storage.write_bytes(self.path, rest)
            else:
                self.path.unlink()


def replay_leftovers(
    client: "MlflowClient", folder: Path, *, seconds: float, first: str = ""
) -> None:
    """Send what other trackers have left in a folder, as far as this store has their runs.

    Never raises: it is a kindness to earlier runs, and must not cost this one its start.

    Args:
        client: the store.
        folder: the spools, named by run id.
        seconds: how long it may take in all.
        first: run whose spool comes before the others.
    """
    deadline = time.monotonic() + seconds
    try:
        paths = [path for path in folder.glob("*.jsonl") if _RUN_ID.fullmatch(path.stem)]
        # The newest first: the oldest may belong to a store that is gone for good.
        paths.sort(key=lambda path: (path.stem == first, path.stat().st_mtime), reverse=True)
        for path in paths:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            _replay_leftover(client, path, left)
    except Exception as error:
        logger.info("leftovers in %s stay there: %s", folder, one_line(error))


def _replay_leftover(client: "MlflowClient", path: Path, seconds: float) -> None:
    try:
        if Spool(path).replay(Sender(lambda: client, path.stem), seconds=seconds):
            logger.info("MLflow has caught up with run %s", path.stem)
    except Exception as error:
        # A run of another store, one that was deleted, or a record that we cannot send ourselves:
        # the spools behind it must not wait for it.
        ours = isinstance(error, VfError | KeyError | TypeError | ValueError)
        if not is_refused(error) and not ours:
            raise


def _batches(data: bytes) -> Iterator[tuple[int, list[Record]]]:
    """Yield what is sent together: how many bytes it takes, and its records.

    Neighbouring metrics go in one call. A line that is no record, or was torn by a kill, is passed
    over: it counts as bytes of the batch that it stands in.
    """
    size, together, metrics = 0, list[Record](), 0
    for line in data.splitlines(keepends=True):
        record = _parse(line)
        if record is not None:
            count = len(record["values"]) if record["kind"] == "metrics" else 0
            # Other kinds go alone, which keeps their order among the metrics.
            alone = together and not record["kind"] == together[0]["kind"] == "metrics"
            if alone or metrics + count > METRICS_PER_CALL:
                yield size, together
                size, together, metrics = 0, [], 0
            together.append(record)
            metrics += count
        size += len(line)
    if size:
        yield size, together


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
        whole = isinstance(record["time"], int | float) and record.keys() >= _NEEDED[record["kind"]]
        values = record.get("values", {})
    except (ValueError, TypeError, KeyError, AttributeError):
        whole, values = False, {}
    if not whole or not isinstance(values, dict):
        logger.warning("passed over a damaged line of a spool: %.80r", line)
        return None
    assert isinstance(record, dict)
    return record


def _is_torn(file: IO[bytes]) -> bool:
    """Return whether a file's last line has no end: its writer was killed, or the disk was full."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


@contextmanager
def _locked(folder: Path, what: str, wait_s: float) -> Iterator[None]:
    """Hold one of a folder's locks.

    Raises:
        TimeoutError: another process holds it for longer than ``wait_s`` seconds.
    """
    # Only a store that fails pays for this import.
    import filelock

    lock = filelock.FileLock(folder / f".{what}.lock")
    with lock.acquire(timeout=wait_s, poll_interval=0.02):
        yield
