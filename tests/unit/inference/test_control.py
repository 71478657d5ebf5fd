"""Engine control against a stub of the control routes, a dead address, and one that is mute."""

import socket
import threading
from pathlib import Path

import pytest

from tests.unit.training.engine_stub import stub_engine
from vf_pipeline.errors import AuthError, ProviderError, UnreachableError
from vf_pipeline.inference.control import EngineControl, list_models
from vf_pipeline.inference.endpoints import Endpoint


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def test_weights_are_loaded_and_verified(tmp_path: Path) -> None:
    with stub_engine() as engine:
        control = EngineControl(engine.url)
        assert control.weight_version() == "start"
        control.load_weights(tmp_path, "7")
        assert engine.loaded == [{"weights_path": str(tmp_path), "weight_version": "7"}]
        assert control.weight_version() == "7"
        assert control.health() == {"weight_version": "7"}, "the stub answers all routes alike"


def test_refusals_are_named(tmp_path: Path) -> None:
    with stub_engine() as engine:
        control = EngineControl(engine.url)
        engine.refuse = 400
        with pytest.raises(ProviderError, match=r"/update_weights with 400: .*no such folder"):
            control.load_weights(tmp_path, "1")
        engine.refuse = 404
        with pytest.raises(ProviderError, match="only vf-serve has this route"):
            control.load_weights(tmp_path, "1")
        engine.refuse = 401
        with pytest.raises(AuthError, match="check the key"):
            control.load_weights(tmp_path, "1")
        engine.refuse = 0
        engine.forget = True
        with pytest.raises(ProviderError, match="serves weights 'start' after it was given"):
            control.load_weights(tmp_path, "1")


def test_a_dead_engine_is_noticed(tmp_path: Path) -> None:
    with stub_engine() as alive:
        EngineControl(alive.url).check_alive()
    gone = EngineControl(free_address())
    with pytest.raises(UnreachableError, match="gone: connection refused"):
        gone.check_alive()
    with pytest.raises(UnreachableError, match="failed at"):
        gone.load_weights(tmp_path, "1")


def test_an_engine_that_is_busy_is_alive_but_a_wait_is_bounded() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        engine = EngineControl(f"http://127.0.0.1:{mute.getsockname()[1]}/v1", timeout_s=0.2)
        with pytest.raises(ProviderError, match=r"waited 0 s|failed at"):
            engine.weight_version()


def test_models_of_a_foreign_server_are_listed() -> None:
    with stub_engine() as engine:
        assert list_models(Endpoint(engine.url, "m"), 5.0) == [], "an answer without a list"
    with pytest.raises(UnreachableError, match="cannot reach"):
        list_models(Endpoint(free_address(), "m"), 5.0)


def test_an_engine_that_dies_while_it_answers_is_a_broken_connection() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def half_an_answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        dying = threading.Thread(target=half_an_answer)
        dying.start()
        control = EngineControl(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        with pytest.raises(UnreachableError, match="broke off"):
            control.weight_version()
        dying.join(timeout=5)
