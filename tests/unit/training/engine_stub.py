"""The control routes of an engine, without one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class StubEngine:
    """What was asked of it, and how it answers."""

    url: str = ""
    version: str = "start"
    loaded: list[dict[str, Any]] = field(default_factory=list)
    refuse: int = 0
    forget: bool = False

    def load(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.refuse:
            return self.refuse, {"error": {"message": "no such folder"}}
        self.loaded.append(body)
        if not self.forget:
            self.version = body["weight_version"]
        return 200, {}


@contextmanager
def stub_engine() -> Iterator[StubEngine]:
    engine = StubEngine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"weight_version": engine.version})

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            self._answer(*engine.load(json.loads(self.rfile.read(size))))

        def _answer(self, code: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
