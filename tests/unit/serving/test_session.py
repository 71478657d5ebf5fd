"""The session over a backend that only notes what is asked of it."""

from pathlib import Path
from typing import get_args

import pytest

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.serving.backends import BACKENDS
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.types import ModelRef

BASE, TUNED, LARGER = ModelRef("base", "1"), ModelRef("tuned", "2"), ModelRef("larger", "3")


class NotedBackend:
    """Takes the weights of "base" and "tuned" in place."""

    def __init__(self, settings: InferenceSettings, run_dir: Path) -> None:
        self.calls: list[str] = []
        self.serving: tuple[str, int] | None = None

    def start(self, model: ModelRef, threads: int) -> None:
        self.calls.append(f"start {model.uri} {threads}")
        self.serving = (model.uri, threads)

    def serves(self, model: ModelRef, threads: int) -> bool:
        if self.serving is None or self.serving[1] != threads or model == LARGER:
            return False
        self.calls.append(f"take {model.uri}")
        return True

    def endpoint(self, model: ModelRef) -> Endpoint:
        return Endpoint("http://127.0.0.1:1/v1", model.uri)

    def stop(self) -> None:
        self.calls.append("stop")
        self.serving = None


def test_an_engine_is_started_only_where_it_cannot_change_in_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(BACKENDS, "builtin", NotedBackend)
    with EngineSession(InferenceSettings(threads=2), tmp_path) as session:
        backend = session._backend
        assert isinstance(backend, NotedBackend)
        assert backend.calls == [], "nothing is started before it is needed"
        assert session.endpoint_for(BASE).model == "base"
        assert session.endpoint_for(TUNED).model == "tuned"
        session.endpoint_for(TUNED, threads=1)
        session.endpoint_for(LARGER, threads=1)
    assert backend.calls == [
        *("stop", "start base 2", "take tuned"),
        *("stop", "start tuned 1"),
        *("stop", "start larger 1"),
        "stop",
    ]


def test_every_engine_of_the_settings_has_a_backend() -> None:
    assert set(BACKENDS) == set(get_args(InferenceSettings.model_fields["engine"].annotation))
