"""MLflow as the record of a run, through its client alone.

MLflow's fluent functions keep the active run per thread and start runs unasked, so they are not
used. A store that fails is reported once; what it missed goes to a JSONL spool.
"""

import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from vf_pipeline.tracking.records import (
    Record,
    artifact_record,
    close_record,
    dataset_record,
    metrics_record,
    params_record,
    tags_record,
)
from vf_pipeline.tracking.sender import Sender
from vf_pipeline.tracking.spool import Spool, replay_leftovers
from vf_pipeline.tracking.store import (
    explain,
    one_line,
    open_client,
    spool_folder,
    sqlite_file,
    state_folder,
)
from vf_pipeline.tracking.tracker import Status, TrackerBase
from vf_pipeline.types import DatasetRef

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_LEFTOVERS_S = 30.0


class _Limits(NamedTuple):
    """Bounds of the ways to a store that has failed, in seconds."""

    rest_s: float
    """How long it is left alone after a failure."""
    replay_s: float
    """How long sending what was spooled may take."""
    wait_s: float
    """How long another process that sends from the same folder is waited for."""


_ON_THE_WAY = _Limits(rest_s=30.0, replay_s=20.0, wait_s=0.0)
_AT_THE_END = _Limits(rest_s=0.0, replay_s=60.0, wait_s=30.0)


class MlflowTracker(TrackerBase):
    """One MLflow run. ``start`` makes it, or attaches to the one it is given."""

    def __init__(self, sender: Sender, spool: Path) -> None:
        self.run_id = sender.run_id
        self.experiment_id = ""
        self.url = ""
        self._sender = sender
        self._params: dict[str, str] = {}
        self._spool = Spool(spool)
        self._warned = False
        self._failed_at = -math.inf
        self._closed = False

    @classmethod
    def start(
        cls,
        uri: str,
        experiment: str,
        name: str,
        *,
        run_id: str | None = None,
        parent_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        ui: str = "",
        spool: Path | None = None,
    ) -> Self:
        """Return the tracker of a new run, or of run ``run_id`` where the store still has it.

        Args:
            uri: tracking URI: ``sqlite:///…`` or a server's ``http(s)://…``.
            experiment: name of the experiment; made when absent.
            name: name of the run.
            run_id: run to attach to; it goes on as RUNNING.
            parent_id: run that this one is shown under.
            tags: tags to set.
            ui: base URL of the MLflow UI, for links; $VF_MLFLOW_UI when empty, and the server's
                own address where the URI is one.
            spool: file for what the store misses; lies beside the sqlite file by default.

        Raises:
            ConfigError: the URI is of a kind that MLflow no longer writes to.
            PrerequisiteError: mlflow is not installed.
            StorageError: the store cannot be reached or opened.
        """
        client = open_client(uri)
        folder = spool.parent if spool else spool_folder(uri)
        # Before this run goes on: what an earlier try of it has spooled may end with its end.
        replay_leftovers(client, folder, seconds=_LEFTOVERS_S, first=run_id or "")
        try:
            run = _attach(client, run_id) if run_id else None
            if run is None:
                place = _experiment(client, uri, experiment)
                run = client.create_run(place, run_name=name)
            found = run.info
            own = {"mlflow.parentRunId": parent_id} if parent_id else {}
            for key, value in tags_record({**own, **(tags or {})})["values"].items():
                client.set_tag(found.run_id, key, value)
        except Exception as error:
            raise explain(error, f"cannot start a run in the MLflow store {uri}") from error
        # Open already; attach() below opens it when it is first needed.
        sender = Sender(lambda: client, str(found.run_id))
        tracker = cls(sender, spool or folder / f"{found.run_id}.jsonl")
        tracker.experiment_id = str(found.experiment_id)
        # MLflow answers a changed value with an error that refuses the whole call.
        tracker._params = dict(run.data.params)
        base = uri if uri.startswith("http") else ui or os.environ.get("VF_MLFLOW_UI", "")
        link = f"#/experiments/{found.experiment_id}/runs/{found.run_id}"
        tracker.url = f"{base.rstrip('/')}/{link}" if base else ""
        return tracker

    @classmethod
    def attach(cls, uri: str, run_id: str) -> Self:
        """Return the tracker of a run that another process has started and will close.

        The store need not answer: until it does, everything is spooled, where that process finds
        it too. Call ``flush`` at the end, never ``close``.
        """
        sender = Sender(lambda: open_client(uri), run_id)
        return cls(sender, spool_folder(uri) / f"{run_id}.jsonl")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings. A name that already has a value keeps it: MLflow never changes one."""
        record = params_record(params)
        texts: dict[str, str] = record["values"]
        fresh = {key: text for key, text in texts.items() if key not in self._params}
        kept = [key for key, text in texts.items() if self._params.get(key, text) != text]
        if kept:
            logger.info("MLflow keeps the earlier values of %s", ", ".join(sorted(kept)))
        self._params.update(fresh)
        self._keep(record | {"values": fresh})

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers in one call; names may not hold ``@``, which becomes ``_at_``."""
        self._keep(metrics_record(metrics, step))

    def log_step(self, step: int, metrics: Mapping[str, float], *, once_by: str) -> None:
        """Record the numbers of a step, unless the run has them already.

        MLflow cannot take back a value. A training that goes on from a checkpoint repeats the steps
        since then, and they would appear twice.

        Args:
            step: the step; steps come in rising order.
            metrics: its numbers.
            once_by: name of the one among them whose history says which steps are known.
        """
        self._keep(metrics_record(metrics, step, once_by))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file or a folder into the run's artifacts."""
        self._keep(artifact_record(path, folder))

    def log_dataset(self, ref: DatasetRef, name: str, context: str) -> None:
        """Record a dataset as an input of the run, by reference."""
        self._keep(dataset_record(ref, name, context))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._keep(tags_record(tags))

    def register_model(
        self,
        name: str,
        uri: str,
        run_id: str = "",
        alias: str = "candidate",
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Return the version under which a folder of weights was published; see register_model.

        Unlike bookkeeping, publishing is what the caller wants done, so a failure raises.

        Raises:
            StorageError: the store refused it.
        """
        return _register(self._sender.client, name, uri, run_id or self.run_id, alias, tags or {})

    def close(self, status: Status = "FINISHED") -> None:
        """End the run; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._keep(close_record(status), last=True)

    def flush(self) -> None:
        """Send what was spooled, if the store answers now; the run stays open."""
        self._keep(None, last=True)

    def _keep(self, record: Record | None, *, last: bool = False) -> None:
        """Send a record after all that was spooled before it, or spool it too.

        A failure is reported once, and the store is left alone for a while then: a server that is
        down costs its whole timeout a call, which would stall training.

        Args:
            record: what to keep; None only sends what was spooled.
            last: whether this is the last chance: asks whenever the store failed, and waits for
                another process that sends from the same folder.
        """
        limits = _AT_THE_END if last else _ON_THE_WAY
        sent = False
        if time.monotonic() - self._failed_at >= limits.rest_s:
            try:
                sent = self._spool.replay(
                    self._sender, seconds=limits.replay_s, wait_s=limits.wait_s
                )
                # Nothing to send does not show that the store answers; this does.
                if record is None:
                    self._sender.check_run()
                elif sent:
                    self._sender.send([record])
            except Exception as error:
                sent = False
                self._failed_at = time.monotonic()
                self._warn(error)
        if not sent and record is not None:
            # Behind what waits already: of two values of a tag, the later one stays.
            self._spool.append(record)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "MLflow refuses run %s, spooling to %s until it takes it: %s",
                self.run_id,
                self._spool.path,
                one_line(error),
            )


def register_model(
    tracking_uri: str,
    name: str,
    uri: str,
    run_id: str,
    alias: str = "candidate",
    tags: Mapping[str, str] | None = None,
) -> str:
    """Return the version under which a folder of weights is published in the model registry.

    The model and a version of it are made from the URI alone, nothing is copied. The alias moves
    to the version; the version that held it is kept under the alias "previous". Publishing again
    what the alias already names changes nothing.

    Raises:
        ConfigError, PrerequisiteError, StorageError: as MlflowTracker.start.
    """
    return _register(open_client(tracking_uri), name, uri, run_id, alias, tags or {})


def _attach(client: "MlflowClient", run_id: str) -> "Run | None":
    """Return a run that goes on, or None where the store does not know it (any more)."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
        if run.info.lifecycle_stage == "deleted":
            return None
        client.update_run(run_id, status="RUNNING")
        return run
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _experiment(client: "MlflowClient", uri: str, name: str) -> str:
    """Return the id of an experiment, made or restored where need be."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        # Without a server, mlflow would put artifacts below the current folder.
        folder = state_folder(uri).absolute() / "artifacts" if sqlite_file(uri) else None
        try:
            return str(client.create_experiment(name, folder.as_uri() if folder else None))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _register(
    client: "MlflowClient", name: str, uri: str, run_id: str, alias: str, tags: Mapping[str, str]
) -> str:
    from mlflow.exceptions import MlflowException

    # MLflow refuses both in a model's name, which is often that of a repository: org/model.
    name = name.replace("/", "-").replace(":", "-")
    source = uri if "://" in uri else Path(uri).absolute().as_uri()
    wanted: dict[str, str] = tags_record(tags)["values"]
    try:
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        held = client.get_registered_model(name).aliases.get(alias)
        if held is not None:
            version = client.get_model_version(name, str(held))
            if version.source == source and version.tags == wanted:
                return str(held)
        fresh = client.create_model_version(name, source, run_id or None, tags=wanted)
        if held is not None:
            # In this order, the alias names a version at every moment.
            client.set_registered_model_alias(name, "previous", str(held))
        client.set_registered_model_alias(name, alias, str(fresh.version))
        return str(fresh.version)
    except Exception as error:
        raise explain(error, f"cannot register the model {name!r}") from error
