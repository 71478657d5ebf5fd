"""An MLflow store: how it is opened, where its things lie, and what its errors mean."""

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vf_pipeline.errors import ConfigError, PrerequisiteError, StorageError

if TYPE_CHECKING:
    from mlflow import MlflowClient


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
        if sqlite_file(uri):
            state_folder(uri).mkdir(parents=True, exist_ok=True)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except Exception as error:
        raise explain(error, f"cannot open the MLflow store {uri}") from error


def _prepare_environment() -> None:
    """Set what mlflow reads on import: no telemetry, no chatter, no minutes-long retries."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    # By default 7 retries, each after a longer pause, of up to 120 s: a stage would stand still for
    # a record that can be spooled.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def sqlite_file(uri: str) -> str:
    """Return the file of a sqlite store, or "" of any other."""
    return uri.partition("sqlite:///")[2] if uri.startswith("sqlite:///") else ""


def state_folder(uri: str) -> Path:
    """Return where this project keeps what belongs to a store: beside its file, or under .vf/."""
    file = sqlite_file(uri)
    return Path(file).parent if file else Path(os.environ.get("VF_STATE", ".vf"))


def spool_folder(uri: str) -> Path:
    """Return the folder of the spools of a store, one file a run."""
    return state_folder(uri) / "spool"


def is_refused(error: Exception) -> bool:
    """Return whether a store answered that it will never take this, however often it is asked.

    Everything else may pass: no answer, a locked or damaged database, a full disk.
    """
    code = getattr(error, "error_code", "")
    return code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def explain(error: Exception, what: str) -> StorageError:
    """Return an error of mlflow as one line with a remedy."""
    hint = "check the URI, and that the server runs or the file's folder is writable"
    return StorageError(f"{what}: {one_line(error)}", hint)


def one_line(error: Exception) -> str:
    """Return an error's text on one line, cut where it gets long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " …"
