"""Sends records to one MLflow run, each at most once where its steps are numbered."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vf_pipeline.errors import StorageError
from vf_pipeline.tracking.records import Record, metrics_of, milliseconds
from vf_pipeline.tracking.store import is_refused, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

_BATCH = 100
METRICS_PER_CALL = 1000
"""What MLflow takes in one call: 100 parameters or tags, 1000 metrics."""


class Sender:
    """The way to one run of a store.

    Args:
        connect: opens the store; called when it is first needed, and again until it succeeds.
        run_id: the run.
    """

    def __init__(self, connect: "Callable[[], MlflowClient]", run_id: str) -> None:
        self.run_id = run_id
        self._connect = connect
        self._last_steps: dict[str, int] = {}

    @cached_property
    def client(self) -> "MlflowClient":
        """The store's client."""
        return self._connect()

    def check_run(self) -> None:
        """Make sure that the store has the run.

        Raises:
            StorageError: it was deleted there. What mlflow raises: it is unknown, or nobody
                answers.
        """
        if self.client.get_run(self.run_id).info.lifecycle_stage == "deleted":
            raise StorageError(f"run {self.run_id} was deleted", "restore it in MLflow")

    def last_step(self, metric: str) -> int:
        """Return the highest step that the run has of a metric, or -1; asked once."""
        if metric not in self._last_steps:
            history = self.client.get_metric_history(self.run_id, metric)
            self._last_steps[metric] = max((point.step for point in history), default=-1)
        return self._last_steps[metric]

    def send(self, records: Sequence[Record]) -> None:
        """Send one record, or several of metrics together.

        Raises:
            Exception: what mlflow raises; all of it may be sent again.
        """
        first = records[0]
        match first["kind"]:
            case "metrics":
                self._send_metrics(records)
            case "params":
                self._send_params(first)
            case "tags":
                self._send_tags(first)
            case "artifact":
                self._send_artifact(first)
            case "dataset":
                self._send_dataset(first)
            case "close":
                # When it ended, not when that could be told: a spooled end may be sent days later.
                end = milliseconds(first)
                self.client.set_terminated(self.run_id, first["status"], end)

    def send_what_is_taken(self, records: Sequence[Record]) -> None:
        """Send records; of those that the store refuses for good, send what it does take.

        Raises:
            Exception: what mlflow raises where it may take them later.
        """
        try:
            self.send(records)
        except Exception as error:
            # A record that we cannot send ourselves would stop all behind it, and for ever.
            ours = isinstance(error, KeyError | TypeError | ValueError)
            if not is_refused(error) and not ours:
                raise
            # The store refuses a call whole for one bad value in it, and does not say which one.
            parts = _halved(records) if len(records) > 1 or not ours else []
            if not parts:
                who = "it cannot be sent" if ours else "MLflow refuses it"
                logger.warning("a record is left out for good, %s: %s", who, one_line(error))
            for part in parts:
                self.send_what_is_taken(part)

    def _send_metrics(self, records: Sequence[Record]) -> None:
        fresh: list[Record] = []
        seen: dict[str, int] = {}
        for record in records:
            step, by = int(record["step"]), record.get("once_by", "")
            # What the run has, and what stands earlier in these very records.
            if by and step <= max(self.last_step(by), seen.get(by, -1)):
                continue
            fresh.append(record)
            for name in record["values"]:
                seen[name] = max(step, seen.get(name, -1))
        items = [item for record in fresh for item in metrics_of(record)]
        for start in range(0, len(items), METRICS_PER_CALL):
            self.client.log_batch(self.run_id, metrics=items[start : start + METRICS_PER_CALL])
        # Only once all calls went through: records that are sent again must not look like known
        # ones.
        for name in self._last_steps.keys() & seen.keys():
            self._last_steps[name] = max(self._last_steps[name], seen[name])

    def _send_params(self, record: Record) -> None:
        from mlflow.entities import Param

        items = [Param(key, text) for key, text in record["values"].items()]
        for start in range(0, len(items), _BATCH):
            self.client.log_batch(self.run_id, params=items[start : start + _BATCH])

    def _send_tags(self, record: Record) -> None:
        from mlflow.entities import RunTag

        items = [RunTag(key, text) for key, text in record["values"].items()]
        for start in range(0, len(items), _BATCH):
            self.client.log_batch(self.run_id, tags=items[start : start + _BATCH])

    def _send_artifact(self, record: Record) -> None:
        path, folder = Path(record["path"]), record["folder"] or None
        if not os.access(path, os.R_OK):
            # It will not come back, and what was logged after it must not wait for it.
            logger.warning("MLflow does not get %s: it cannot be read (any more)", path)
        elif path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), folder)
        else:
            self.client.log_artifact(self.run_id, str(path), folder)

    def _send_dataset(self, record: Record) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        values = record["values"]
        scheme, _, rest = values["uri"].partition("://")
        dataset = Dataset(
            name=record["name"],
            digest=values["digest"],
            source_type=scheme if rest else "local",
            source=json.dumps({"uri": values["uri"]}),
            profile=json.dumps({"num_rows": values["rows"]}),
        )
        entry = DatasetInput(dataset, [InputTag("mlflow.data.context", record["context"])])
        self.client.log_inputs(self.run_id, [entry])


def _halved(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Return records, or the values of a single one, in two halves; [] where that ends."""
    if len(records) > 1:
        middle = len(records) // 2
        return [records[:middle], records[middle:]]
    values = list(records[0].get("values", {}).items())
    if len(values) < 2 or records[0]["kind"] == "dataset":
        return []
    middle = len(values) // 2
    # Its step is new, or it would not have been sent; the first half must not hide the second.
    whole = {key: value for key, value in records[0].items() if key != "once_by"}
    return [[whole | {"values": dict(part)}] for part in (values[:middle], values[middle:])]
