"""Where metrics, parameters and artifacts go: nowhere, a JSONL file, or MLflow.

This room alone imports mlflow, and only when an MlflowTracker starts.
"""

from vf_pipeline.tracking.jsonl import JsonlTracker
from vf_pipeline.tracking.mlflow_tracker import MlflowTracker, register_model
from vf_pipeline.tracking.tracker import NullTracker, Tracker

__all__ = ["JsonlTracker", "MlflowTracker", "NullTracker", "Tracker", "register_model"]
