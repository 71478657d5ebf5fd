"""Where this project's servers answer, all on loopback."""

import os


def prefect_port() -> int:
    """Return the port of the Prefect server that stays up ($VF_PREFECT_PORT, else 4200)."""
    return int(os.environ.get("VF_PREFECT_PORT", "4200"))


def mlflow_port() -> int:
    """Return the port of the MLflow UI ($VF_MLFLOW_PORT, else 5000)."""
    return int(os.environ.get("VF_MLFLOW_PORT", "5000"))


def prefect_ui() -> str:
    """Return the address of the Prefect UI."""
    return f"http://127.0.0.1:{prefect_port()}"


def prefect_api() -> str:
    """Return the address of the Prefect API."""
    return f"{prefect_ui()}/api"


def mlflow_ui() -> str:
    """Return the address of the MLflow UI."""
    return f"http://127.0.0.1:{mlflow_port()}"
