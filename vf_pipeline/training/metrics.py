"""The numbers of a training as lines of a file: written by the child, followed by the parent."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf_pipeline import storage

Line = dict[str, Any]
"""One step: ``step``, ``time`` (seconds since the epoch) and its metrics."""


class MetricsFile:
    """Appends one line a step to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps: dict[int, Line] = {line["step"]: line for line in read_metrics(path)}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics.

        Raises:
            StorageError: there is no space, or no permission.
        """
        line: Line = {"step": step, "time": round(time.time(), 3), **metrics}
        self._steps[step] = line
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise storage.explain_os_error(error, "write", self.path) from error

    def forget_after(self, step: int) -> None:
        """Remove the lines of later steps, which are about to be trained again."""
        kept = {number: line for number, line in self._steps.items() if number <= step}
        text = "".join(json.dumps(line) + "\n" for _, line in sorted(kept.items()))
        if self.path.exists():
            storage.write_text(self.path, text)
        self._steps = kept

    def summary(self) -> dict[str, float]:
        """Return the last step's metrics, and the first step's under "first/"."""
        if not self._steps:
            return {}
        first, last = self._steps[min(self._steps)], self._steps[max(self._steps)]
        return {f"first/{key}": value for key, value in _numbers(first).items()} | _numbers(last)


class Follower:
    """Reads the lines that another process appends; starts over when the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = -1

    def new_lines(self) -> list[Line]:
        """Return the complete lines since the last call."""
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                # forget_after() renames a new file into place: what was read of the old one says
                # nothing about where its lines begin.
                if inode != self._inode:
                    self._offset, self._inode = 0, inode
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        # A line without its end is still being written; the next call reads it again, whole.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return _parse(whole)


def read_metrics(path: Path) -> list[Line]:
    """Return all complete lines of a metrics file; an absent file has none."""
    return Follower(path).new_lines()


def _parse(data: bytes) -> list[Line]:
    lines = []
    for raw in data.splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            # A line that a killed process left torn.
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def _numbers(line: Line) -> dict[str, float]:
    return {key: value for key, value in line.items() if key not in ("step", "time")}
