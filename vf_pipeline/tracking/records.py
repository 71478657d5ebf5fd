"""What is logged, as plain records: sent to MLflow now, or spooled and sent later.

A record holds what MLflow will be given, names and lengths as it takes them, and the time at which
it was made. Sent twice, it changes nothing: MLflow keys a metric's value by name, step and time.
"""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from vf_pipeline.tracking.tracker import Status, flatten
from vf_pipeline.types import DatasetRef

if TYPE_CHECKING:
    from mlflow.entities import Metric

Record = dict[str, Any]
"""``time`` (seconds since the epoch, to the millisecond), ``kind``, and what the kind needs."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. :/]")
# MLflow's own bounds, in characters; that of tags is larger since, but not on older servers.
_MAX_PARAM = 6000
_MAX_TAG = 5000


def params_record(params: Mapping[str, Any]) -> Record:
    """Return settings as a record, with dotted names."""
    texts = {safe_name(key): str(value)[:_MAX_PARAM] for key, value in flatten(params).items()}
    return _made("params", values=texts)


def metrics_record(metrics: Mapping[str, float], step: int | None, once_by: str = "") -> Record:
    """Return the numbers of one step as a record.

    Args:
        metrics: the numbers; what is none is left out.
        step: their step; None is 0.
        once_by: name of a metric whose history says which steps a run has already; such a step's
            record is passed over when it is sent.
    """
    values = {safe_name(k): float(v) for k, v in metrics.items() if _is_number(v)}
    once = {"once_by": safe_name(once_by)} if once_by else {}
    return _made("metrics", step=step or 0, values=values, **once)


def artifact_record(path: Path, folder: str) -> Record:
    """Return a file or folder as a record: where it lies, not what it holds."""
    # Whoever replays a spool may run in another folder.
    return _made("artifact", path=os.path.abspath(path), folder=folder)


def dataset_record(ref: DatasetRef, name: str, context: str) -> Record:
    """Return a dataset's reference as a record."""
    values = {"uri": ref.uri, "digest": ref.digest, "rows": ref.rows}
    return _made("dataset", name=name, context=context, values=values)


def tags_record(tags: Mapping[str, str]) -> Record:
    """Return tags as a record."""
    return _made(
        "tags", values={safe_name(key): str(value)[:_MAX_TAG] for key, value in tags.items()}
    )


def close_record(status: Status) -> Record:
    """Return a run's end as a record."""
    return _made("close", status=status)


def safe_name(text: str) -> str:
    """Return a name as MLflow takes it: ``@`` becomes ``_at_``, other strangers ``_``."""
    return _NOT_IN_NAMES.sub("_", text.replace("@", "_at_"))


def milliseconds(record: Record) -> int:
    """Return when a record was made, as MLflow counts time."""
    seconds: float = record["time"]
    return round(seconds * 1000)


def metrics_of(record: Record) -> "list[Metric]":
    """Return a record's numbers as MLflow's entities."""
    from mlflow.entities import Metric

    now, step = milliseconds(record), int(record["step"])
    return [Metric(key, float(value), now, step) for key, value in record["values"].items()]


def _is_number(value: Any) -> bool:
    """Return whether a value is a number: Python's own, or a scalar of a numeric library."""
    return isinstance(value, SupportsFloat) and not isinstance(value, str | bytes)


def _made(kind: str, **fields: Any) -> Record:
    # Milliseconds, as MLflow counts: a finer time would not be recognized when it is sent again.
    return {"time": round(time.time(), 3), "kind": kind, **fields}
