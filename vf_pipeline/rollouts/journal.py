"""What was played: an append-only file of rollouts and scores that survives being killed.

One record a line, ``<crc32> <key> <json>``; the first line is a header with the settings that the
records were made under. Each record is handed to the operating system before ``append`` returns
(so it survives the process), and all are forced to the disk on ``close``. One process writes at a
time; reading needs no lock and goes through the file line by line.

A play, as its records tell it (a later record wins)::

         rollout                     score with a reward
    new ---------> waits for a score --------------------> done
     |               |                                      |
     | rollout       | score without a reward               | a new rollout: what it was
     | with error    v                                      v about is gone
     +-----------> failed --(rollout)--> waits for a score
                     |
                     | failed MAX_ATTEMPTS times without a reward in between
                     v
                   exhausted: not played again; --fresh starts over

The next run plays what is new or failed, and plays again what still waits for its score.

The file::

    absent, or less than its first line --open()--> header written    --+
    header of these settings --open()--> torn tail cut off            --+--> locked, append()
    header of other settings, another writer, damaged head --> JournalError     |
                                             closed, on the disk <--close()-----+
                                     torn tail, at worst <--the process is killed
"""

import contextlib
import fcntl
import json
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote, unquote

from vf_pipeline.errors import JournalError
from vf_pipeline.rollouts.record import (
    SCHEMA,
    jsonable,
    rollout_from_dict,
    rollout_to_dict,
    score_from_dict,
    score_to_dict,
    to_json,
)
from vf_pipeline.storage import explain_os_error
from vf_pipeline.types import Rollout, Score, ScoredRollout

MAX_ATTEMPTS = 3
"""How often a rollout that ends in an error is played, over all runs of one journal."""

_HEADER = "header"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """How far a journal is: numbers of distinct plays.

    ``done`` ended without error and have a score, ``failed`` ended with an error last time,
    ``unscored`` wait for their score.
    """

    done: int = 0
    failed: int = 0
    unscored: int = 0


@dataclass(slots=True)
class _Ledger:
    """What the records so far say about each play."""

    played: set[str] = field(default_factory=set)
    scored: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)

    def see(self, key: str, data: dict[str, Any]) -> None:
        if data["kind"] == "score":
            # Without a reward the play is as good as failed: it is played again.
            if data["reward"] is not None:
                self.scored.add(key)
                self.failures.pop(key, None)
            elif key in self.played:
                self.played.discard(key)
                self.failures[key] = self.failures.get(key, 0) + 1
            return
        # A new play is not what an older score was about.
        self.scored.discard(key)
        if data["error"]:
            self.played.discard(key)
            self.failures[key] = self.failures.get(key, 0) + 1
        else:
            self.played.add(key)


class Journal:
    """A journal that is open for appending; see ``Journal.open``."""

    def __init__(self, path: Path, file_descriptor: int) -> None:
        self.path = path
        self._fd = file_descriptor
        self._size = 0
        self._ledger = _Ledger()

    @classmethod
    def open(cls, path: str | Path, settings: dict[str, Any], fresh: bool = False) -> "Journal":
        """Open a journal for appending, or begin it; a torn tail is cut off.

        Args:
            path: a local file; its folder is made.
            settings: what the records depend on; JSON values.
            fresh: whether to throw away what is there.

        Raises:
            JournalError: another process writes it, its settings differ, or its head is damaged.
            StorageError: the file cannot be opened or written.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # O_APPEND: after a truncation the next write goes to the new end by itself.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise explain_os_error(error, "open", path) from error
        journal = cls(path, descriptor)
        try:
            # Before anything is read or cut: what looks like a torn tail may be another's line half
            # written.
            journal._lock()
            journal._begin(jsonable(settings), fresh)
        except BaseException as error:
            # Also on Ctrl-C: the lock is the descriptor's, and would last as long as this process.
            os.close(descriptor)
            if isinstance(error, OSError):
                raise explain_os_error(error, "open", path) from error
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append_rollout(self, rollout: Rollout) -> None:
        """Write a rollout down.

        Raises:
            StorageError: the disk is full, or broken; nothing of the record remains then.
        """
        self._append((rollout.key, rollout_to_dict(rollout)))

    def append_score(self, score: Score) -> None:
        """Write a score down; it replaces an earlier one.

        Raises:
            StorageError: the disk is full, or broken; nothing of the record remains then.
        """
        self._append((score.key, score_to_dict(score)))

    def append(self, rollout: Rollout, score: Score) -> None:
        """Write a rollout and its score down, in one go.

        Raises:
            StorageError: the disk is full, or broken; nothing of the two remains then.
        """
        self._append((rollout.key, rollout_to_dict(rollout)), (score.key, score_to_dict(score)))

    def done(self) -> set[str]:
        """Return the keys that have a rollout without error and its score."""
        return self._ledger.played & self._ledger.scored

    def exhausted(self) -> set[str]:
        """Return the keys whose last plays all failed, as often as we try."""
        counts = self._ledger.failures.items()
        return {key for key, count in counts if count >= MAX_ATTEMPTS}

    def close(self) -> None:
        """Force the records to the disk and let others write.

        Raises:
            StorageError: the disk did not take them.
        """
        if self._fd < 0:
            return
        # Closed to begin with: a flush that fails must not be tried twice, for the second may
        # succeed without the data being there.
        descriptor, self._fd = self._fd, -1
        try:
            # Once, at the end: a flush for each record would cost more than many a rollout, and
            # write() already survives this process. What a power cut takes is played again.
            os.fsync(descriptor)
        except OSError as error:
            raise explain_os_error(error, "write", self.path) from error
        finally:
            os.close(descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(
                f"{self.path} is being written by another process",
                "wait for it, or end it, then run the same command again",
            ) from None
        except OSError as error:
            raise explain_os_error(error, "lock", self.path) from error

    def _begin(self, settings: dict[str, Any], fresh: bool) -> None:
        header = _frame(_HEADER, {"schema": SCHEMA, "kind": _HEADER, "settings": settings})
        if fresh or self._is_stillborn(header):
            os.ftruncate(self._fd, 0)
        if os.fstat(self._fd).st_size == 0:
            self._write(header)
            return
        with self.path.open("rb") as file:
            _check_settings(_read_header(file, self.path), settings, self.path)
            self._size = file.tell()
            for end, key, data in _records(file, self.path):
                self._ledger.see(key, data)
                self._size = end
        if self._size < os.fstat(self._fd).st_size:
            logger.warning("%s: cut off a record that was not written to its end", self.path)
            os.ftruncate(self._fd, self._size)

    def _is_stillborn(self, header: bytes) -> bool:
        """Whether the file holds a part of its first line only, as a writer killed there leaves."""
        with self.path.open("rb") as file:
            start = file.read(len(header))
        return len(start) < len(header) and header.startswith(start)

    def _append(self, *records: tuple[str, dict[str, Any]]) -> None:
        if self._fd < 0:
            raise JournalError(f"{self.path} is closed")
        # All records in one write: a kill in between would leave a rollout that waits for its
        # score.
        self._write(b"".join(_frame(key, data) for key, data in records))
        # Only what is in the file counts as done.
        for key, data in records:
            self._ledger.see(key, data)

    def _write(self, lines: bytes) -> None:
        """Append bytes wholly, or not at all."""
        rest = memoryview(lines)
        try:
            # write() may take a part only, on a disk that gets full for one.
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BaseException as error:
            # Half a record followed by whole ones would be damage in the middle; now it is nothing.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            if isinstance(error, OSError):
                raise explain_os_error(error, "write", self.path) from error
            raise
        self._size += len(lines)


def read_journal(path: str | Path) -> list[ScoredRollout]:
    """Return every play that has a rollout and its score, each once, the latest of each.

    Sorted by example and index; plays that ended in an error are among them.

    Raises:
        JournalError: the file's head is damaged.
        StorageError: the file is missing, or was written by another version.
    """
    rollouts: dict[str, Rollout] = {}
    scores: dict[str, Score] = {}
    for key, data in _read(Path(path)):
        if data["kind"] == "score":
            scores[key] = score_from_dict(data)
        else:
            rollouts[key] = rollout_from_dict(data)
            # A score is about the rollout before it; a later play waits for one of its own.
            scores.pop(key, None)
    pairs = [
        ScoredRollout(rollout, scores[key]) for key, rollout in rollouts.items() if key in scores
    ]
    return sorted(pairs, key=lambda pair: (pair[0].example_id, pair[0].index))


def journal_settings(path: str | Path) -> dict[str, Any] | None:
    """Return the settings that a journal was begun under; None where no sound one is there."""
    try:
        with Path(path).open("rb") as file:
            return dict(_read_header(file, Path(path))["settings"])
    except (OSError, JournalError):
        return None


def count_journal(path: str | Path) -> JournalCounts:
    """Return how far a journal is, without touching it; all zero when there is none yet.

    Raises:
        JournalError: the file's head is damaged.
        StorageError: the file cannot be read.
    """
    if not Path(path).exists():
        return JournalCounts()
    ledger = _Ledger()
    for key, data in _read(Path(path)):
        ledger.see(key, data)
    done = len(ledger.played & ledger.scored)
    return JournalCounts(done, len(ledger.failures), len(ledger.played) - done)


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            _read_header(file, path)
            for _, key, data in _records(file, path):
                yield key, data
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def _records(file: BinaryIO, path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield, for each sound record, the offset behind it, its key and its values.

    A damaged line is passed over: at the end it is a record that was not finished, elsewhere the
    plays that it held are played again.
    """
    position = file.tell()
    damaged = 0
    for line in file:
        position += len(line)
        record = _parse(line)
        if record is None:
            damaged += 1
            continue
        if damaged:
            logger.warning("%s: passed over %d damaged lines", path, damaged)
            damaged = 0
        yield position, *record


def _frame(key: str, data: dict[str, Any]) -> bytes:
    # The key is a word of its own in the line: no blank and no line end may be left in it.
    name = quote(key, safe=":", errors="surrogatepass")
    body = f"{name} {to_json(data)}".encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return the key and the values of a line, or None where its checksum does not fit."""
    if not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    body = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(body):
        return None
    name, _, text = body.partition(b" ")
    return unquote(name.decode("ascii"), errors="surrogatepass"), json.loads(text)


def _read_header(file: BinaryIO, path: Path) -> dict[str, Any]:
    record = _parse(file.readline())
    if record is None or record[0] != _HEADER:
        raise JournalError(
            f"{path} does not begin like a journal, or its head is damaged",
            "move it away, or start over with --fresh",
        )
    header = record[1]
    if header.get("schema") != SCHEMA:
        raise JournalError(
            f"{path} has schema {header.get('schema')!r}, this version writes {SCHEMA}",
            "start over with --fresh",
        )
    return header


def _check_settings(header: dict[str, Any], settings: dict[str, Any], path: Path) -> None:
    old, new = _flat(header["settings"]), _flat(settings)
    absent = object()
    changes = [
        f"{key}: {_shown(old, key)} → {_shown(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
    ]
    if changes:
        raise JournalError(
            f"{path} was written under other settings: {'; '.join(changes)}",
            "start over with --fresh, or use the old settings",
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "(absent)"
