"""The worked examples in the docstrings of public names, run as they stand there."""

import doctest
import inspect
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import vf_pipeline as vf

# What users call first; these must have an example.
TAUGHT = {
    "Client",
    "FakeClient",
    "MultiTurnEnv",
    "Rubric",
    "SingleTurnEnv",
    "XMLParser",
    "evaluate",
    "load_environment",
    "split_examples",
}
ADDRESS = "http://127.0.0.1:8000/v1"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class KnowsOneThing(BaseHTTPRequestHandler):
    """Answers every chat with "42"."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "42"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "my-model"}
        body = json.dumps(answer | {"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """A server at a free port, in place of the one that the examples name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), KnowsOneThing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def examples_of(name: str) -> list[doctest.DocTest]:
    found = getattr(vf, name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return []
    tests = doctest.DocTestFinder(exclude_empty=True).find(found, name, globs={})
    return [test for test in tests if test.examples]


WITH_EXAMPLES = [name for name in vf.__all__ if examples_of(name)]


def test_what_users_call_has_an_example() -> None:
    assert set(WITH_EXAMPLES) >= TAUGHT


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_docstring_hold(
    name: str, base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for test in examples_of(name):
        for example in test.examples:  # the server of the examples is at a free port here
            example.source = example.source.replace(ADDRESS, base_url)
        runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
        said: list[str] = []
        runner.run(test, out=said.append)
        assert runner.summarize(verbose=False).failed == 0, "".join(said)
