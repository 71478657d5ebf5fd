"""A tracker that appends one JSON line for each call. Also the spool of a store that fails."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf_pipeline.tracking.tracker import Status, TrackerBase, flatten
from vf_pipeline.types import DatasetRef

logger = logging.getLogger(__name__)


class JsonlTracker(TrackerBase):
    """Appends to a file; each line has ``time``, ``kind`` and what was logged.

    Args:
        path: the file; folders on the way are made with the first line.
        run_id: name of the run; the file's stem when empty.
    """

    def __init__(self, path: Path, run_id: str = "") -> None:
        self.path = Path(path)
        self.run_id = run_id or self.path.stem
        self._warned = False
        self._closed = False

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Append settings, with dotted names."""
        self.append("params", values=flatten(params))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append the numbers of one step."""
        self.append("metrics", step=step, values=dict(metrics))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Append where a file lies; it is not copied."""
        self.append("artifact", path=str(path), folder=folder)

    def log_dataset(self, ref: DatasetRef, name: str, context: str) -> None:
        """Append a dataset's reference."""
        values = {"uri": ref.uri, "digest": ref.digest, "rows": ref.rows}
        self.append("dataset", name=name, context=context, values=values)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Append tags."""
        self.append("tags", values=dict(tags))

    def close(self, status: Status = "FINISHED") -> None:
        """Append the status, once."""
        if not self._closed:
            self._closed = True
            self.append("close", status=status)

    def append(self, kind: str, **fields: Any) -> None:
        """Append one line; a disk that refuses it is reported once and never raises."""
        record = {"time": round(time.time(), 3), "kind": kind, **fields}
        try:
            line = json.dumps(record, ensure_ascii=True, default=str)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except (OSError, ValueError, TypeError) as error:
            if not self._warned:
                self._warned = True
                logger.warning("cannot write %s, metrics are not kept: %s", self.path, error)
