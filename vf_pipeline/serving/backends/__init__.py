"""The engines a run may have, by the name that ``inference.engine`` takes.

A new engine is one file with a ``Backend``, a line here, and its name in the settings.
"""

from collections.abc import Callable
from pathlib import Path

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.serving.backends.backend import Backend
from vf_pipeline.serving.backends.builtin import BuiltinBackend
from vf_pipeline.serving.backends.endpoint import EndpointBackend

BACKENDS: dict[str, Callable[[InferenceSettings, Path], Backend]] = {
    "builtin": BuiltinBackend,
    "endpoint": EndpointBackend,
}
"""Name of an engine to what makes its backend, given the settings and the run's folder."""
