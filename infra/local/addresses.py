"""Where this project's servers answer, all on loopback."""

import os

from vf_pipeline.errors import ConfigError


def prefect_port() -> int:
    """Return the port of the Prefect server that stays up ($VF_PREFECT_PORT, else 4200)."""
    return _port("VF_PREFECT_PORT", 4200)


def mlflow_port() -> int:
    """Return the port of the MLflow UI ($VF_MLFLOW_PORT, else 5000)."""
    return _port("VF_MLFLOW_PORT", 5000)


def prefect_ui() -> str:
    """Return the address of the Prefect UI ($VF_PREFECT_UI, else that of `make up`, `make ui`)."""
    return os.environ.get("VF_PREFECT_UI") or f"http://127.0.0.1:{prefect_port()}"


def prefect_api() -> str:
    """Return the address of the Prefect API."""
    return f"http://127.0.0.1:{prefect_port()}/api"


def mlflow_ui() -> str:
    """Return the address of the MLflow UI."""
    return f"http://127.0.0.1:{mlflow_port()}"


def _port(variable: str, default: int) -> int:
    text = os.environ.get(variable, "") or str(default)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ConfigError(f"{variable}={text!r} is no port", "give a number from 1 to 65535")
    return int(text)
