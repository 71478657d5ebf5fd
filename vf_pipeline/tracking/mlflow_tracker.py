"""MLflow as the record of a run, through its client alone.

MLflow's fluent functions keep the active run per thread and start runs unasked, so they are not
used. A store that fails is reported once; what it missed goes to a JSONL spool.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vf_pipeline.errors import ConfigError, PrerequisiteError, StorageError
from vf_pipeline.tracking.jsonl import JsonlTracker
from vf_pipeline.tracking.tracker import Status, TrackerBase, flatten
from vf_pipeline.types import DatasetRef

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. :/]")
_MAX_PARAM = 6000
_MAX_TAG = 5000
_BATCH = 100
_RETRY_AFTER_S = 30.0


class MlflowTracker(TrackerBase):
    """One MLflow run. ``start`` makes it, or attaches to the one it is given."""

    def __init__(self, client: "MlflowClient", run: "Run", url: str, spool: Path) -> None:
        self._client = client
        self.run_id = str(run.info.run_id)
        self.experiment_id = str(run.info.experiment_id)
        self.url = url
        self._params = dict(run.data.params)
        self._spool = JsonlTracker(spool, self.run_id)
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
        try:
            run = _attach(client, run_id) if run_id else None
            if run is None:
                place = _experiment(client, uri, experiment)
                run = client.create_run(place, run_name=name)
            found = run.info
            own = {"mlflow.parentRunId": parent_id} if parent_id else {}
            for key, value in ({**own, **(tags or {})}).items():
                client.set_tag(found.run_id, _name(key), str(value)[:_MAX_TAG])
        except Exception as error:
            raise _explain(error, f"cannot start a run in the MLflow store {uri}") from error
        base = uri if uri.startswith("http") else ui or os.environ.get("VF_MLFLOW_UI", "")
        link = f"#/experiments/{found.experiment_id}/runs/{found.run_id}"
        url = f"{base.rstrip('/')}/{link}" if base else ""
        place_of_spool = spool or _state_folder(uri) / "spool" / f"{found.run_id}.jsonl"
        return cls(client, run, url, place_of_spool)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings. A name that already has a value keeps it: MLflow never changes one."""
        from mlflow.entities import Param

        texts = {_name(key): str(value)[:_MAX_PARAM] for key, value in flatten(params).items()}
        fresh = {key: text for key, text in texts.items() if key not in self._params}
        kept = [key for key, text in texts.items() if self._params.get(key, text) != text]
        if kept:
            logger.info("MLflow keeps the earlier values of %s", ", ".join(sorted(kept)))
        items = [Param(key, text) for key, text in fresh.items()]

        def send() -> None:
            for start in range(0, len(items), _BATCH):
                self._client.log_batch(self.run_id, params=items[start : start + _BATCH])
            self._params.update(fresh)

        self._guard(send, lambda: self._spool.log_params(fresh))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers in one call; names may not hold ``@``, which becomes ``_at_``."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        items = [
            Metric(_name(key), float(value), now, step or 0)
            for key, value in metrics.items()
            if isinstance(value, int | float)
        ]

        def send() -> None:
            for start in range(0, len(items), _BATCH):
                self._client.log_batch(self.run_id, metrics=items[start : start + _BATCH])

        self._guard(send, lambda: self._spool.log_metrics(metrics, step))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file or a folder into the run's artifacts."""
        path = Path(path)

        def send() -> None:
            if path.is_dir():
                self._client.log_artifacts(self.run_id, str(path), folder or None)
            else:
                self._client.log_artifact(self.run_id, str(path), folder or None)

        self._guard(send, lambda: self._spool.log_artifact(path, folder))

    def log_dataset(self, ref: DatasetRef, name: str, context: str) -> None:
        """Record a dataset as an input of the run, by reference."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=name,
            digest=ref.digest,
            source_type="local" if "://" not in ref.uri else ref.uri.partition("://")[0],
            source=json.dumps({"uri": ref.uri}),
            profile=json.dumps({"num_rows": ref.rows}),
        )
        entry = DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
        self._guard(
            lambda: self._client.log_inputs(self.run_id, [entry]),
            lambda: self._spool.log_dataset(ref, name, context),
        )

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        items = [RunTag(_name(key), str(value)[:_MAX_TAG]) for key, value in tags.items()]
        self._guard(
            lambda: self._client.log_batch(self.run_id, tags=items),
            lambda: self._spool.set_tags(tags),
        )

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
        return _register(self._client, name, uri, run_id or self.run_id, alias, tags or {})

    def close(self, status: Status = "FINISHED") -> None:
        """End the run; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._failed_at = -math.inf
        self._guard(
            lambda: self._client.set_terminated(self.run_id, status),
            lambda: self._spool.close(status),
        )

    def _guard(self, send: Callable[[], object], spool: Callable[[], object]) -> None:
        """Send; on a failure warn once, spool, and leave the store alone for a while.

        A server that is down costs its whole timeout a call, which would stall training.
        """
        if time.monotonic() - self._failed_at < _RETRY_AFTER_S:
            spool()
            return
        try:
            send()
        except Exception as error:
            self._failed_at = time.monotonic()
            if not self._warned:
                self._warned = True
                place = self._spool.path
                cause = _one_line(error)
                logger.warning(
                    "MLflow refuses run %s, spooling to %s: %s", self.run_id, place, cause
                )
            spool()


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


def open_client(uri: str) -> "MlflowClient":
    """Return a client of a tracking store, quiet and with bounded waits.

    Raises:
        ConfigError: the URI is of a kind that MLflow no longer writes to.
        PrerequisiteError: mlflow is not installed.
        StorageError: the store cannot be opened.
    """
    if not re.match(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://|https?://", uri):
        raise ConfigError(
            f"MLflow tracking URI {uri!r} is neither a database nor a server",
            "use sqlite:////absolute/path/mlflow.db or http://host:5000",
        )
    _prepare_environment()
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise PrerequisiteError(f"mlflow is missing: {error}", "pip install mlflow") from error
    try:
        if _sqlite_file(uri):
            _state_folder(uri).mkdir(parents=True, exist_ok=True)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except Exception as error:
        raise _explain(error, f"cannot open the MLflow store {uri}") from error


def _prepare_environment() -> None:
    """Set what mlflow reads on import: no telemetry, no chatter, no minutes-long retries."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    logging.getLogger("alembic").setLevel(logging.WARNING)


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
        folder = _state_folder(uri).absolute() / "artifacts" if _sqlite_file(uri) else None
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

    name = name.replace("/", "-").replace(":", "-")
    source = uri if "://" in uri else Path(uri).absolute().as_uri()
    wanted = {_name(key): str(value)[:_MAX_TAG] for key, value in tags.items()}
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
            client.set_registered_model_alias(name, "previous", str(held))
        client.set_registered_model_alias(name, alias, str(fresh.version))
        return str(fresh.version)
    except Exception as error:
        raise _explain(error, f"cannot register the model {name!r}") from error


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text.replace("@", "_at_"))


def _sqlite_file(uri: str) -> str:
    return uri.partition("sqlite:///")[2] if uri.startswith("sqlite:///") else ""


def _state_folder(uri: str) -> Path:
    """Return where this project keeps what belongs to a store: beside its file, or under .vf/."""
    file = _sqlite_file(uri)
    return Path(file).parent if file else Path(os.environ.get("VF_STATE", ".vf"))


def _explain(error: Exception, what: str) -> StorageError:
    hint = "check the URI, and that the server runs or the file's folder is writable"
    return StorageError(f"{what}: {_one_line(error)}", hint)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " …"
