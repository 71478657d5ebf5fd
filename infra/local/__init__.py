"""The servers of one machine, without Docker: Prefect, MLflow and workers, on loopback."""
