"""The HTTP routes: a real server process under the openai SDK, and its guards in this process."""

import asyncio
import io
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.errors import ConfigError, ProviderError
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.models.weights import weights_digest
from vf_pipeline.processes import reap
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.types import ModelRef

QUESTION = [{"role": "user", "content": "Which number is larger: 12 or 19?"}]


def ref(folder: Path) -> ModelRef:
    return ModelRef(str(folder), weights_digest(folder))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSession]:
    settings = InferenceSettings(max_batch=8, max_context=128, kv_budget_mb=16, threads=1)
    with EngineSession(settings, tmp_path_factory.mktemp("run")) as open_session:
        yield open_session


@pytest.fixture
def endpoint(session: EngineSession, tiny_dir: Path) -> Endpoint:
    return session.endpoint_for(ref(tiny_dir))


@pytest.fixture
def sdk(endpoint: Endpoint) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=endpoint.base_url, api_key="-", max_retries=0) as client:
        yield client


def post(endpoint: Endpoint, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    url = endpoint.base_url.removesuffix("/v1") + path
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_chat_through_the_sdk(sdk: Any, tokenizer: Any) -> None:
    answer = sdk.chat.completions.create(
        model="builtin",
        messages=QUESTION,
        n=2,
        seed=5,
        max_completion_tokens=6,
        logprobs=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True, "top_k": 50},
    )
    prompt = tokenizer.render(QUESTION)
    assert answer.prompt_token_ids == prompt
    assert answer.usage.prompt_tokens == len(prompt)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert len(choice.token_ids) == len(choice.logprobs.content) <= 6
        assert choice.message.content == tokenizer.decode(choice.token_ids)
        assert len(choice.logprobs.content[0].top_logprobs) == 2
        assert choice.finish_reason in ("stop", "length")
    assert sdk.models.list().data[0].id == "builtin"


def test_completions_take_ids_and_give_ids(sdk: Any, endpoint: Endpoint, tokenizer: Any) -> None:
    prompts = [tokenizer.encode("echo 10", False), tokenizer.encode("echo 20 or 30", False)]
    answer = sdk.completions.create(
        model="builtin",
        prompt=prompts,
        n=2,
        seed=1,
        max_tokens=5,
        logprobs=0,
        extra_body={"return_token_ids": True},
    )
    assert [c.prompt_token_ids for c in answer.choices] == [p for p in prompts for _ in "ab"]
    for choice in answer.choices:
        count = len(choice.token_ids)
        assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) == count
        assert choice.logprobs.text_offset[0] == 0
        assert choice.text == tokenizer.decode(choice.token_ids)
        assert len(choice.weight_version) == 16
    again = sdk.completions.create(model="builtin", prompt="echo 10", n=2, seed=1, max_tokens=5)
    assert [c.text for c in again.choices] == [c.text for c in answer.choices[:2]]


def test_equal_prompts_of_one_request_draw_for_themselves(endpoint: Endpoint) -> None:
    body = {"prompt": [[5, 6, 7]] * 4, "max_tokens": 12, "return_token_ids": True}
    _, answer = post(endpoint, "/v1/completions", body)
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) > 1
    _, answer = post(endpoint, "/v1/completions", body | {"seed": 3})
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 1


def test_streams_give_the_same_text(sdk: Any) -> None:
    asked: dict[str, Any] = {
        "model": "builtin",
        "messages": QUESTION,
        "seed": 9,
        "n": 2,
        "max_tokens": 20,
        "stop": ["z"],
    }
    whole = sdk.chat.completions.create(**asked)
    texts, finishes = ["", ""], [None, None]
    usage = None
    with sdk.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    with sdk.completions.create(
        model="builtin", prompt="echo", seed=3, max_tokens=8, stream=True
    ) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream)
    plain = sdk.completions.create(model="builtin", prompt="echo", seed=3, max_tokens=8)
    assert text == plain.choices[0].text


def test_a_prompt_that_is_too_long_is_told_in_openais_words(sdk: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length is 128") as caught:
        sdk.completions.create(model="builtin", prompt=[5] * 100, max_tokens=29)
    assert caught.value.code == "context_length_exceeded"
    full = sdk.completions.create(
        model="builtin", prompt=[5] * 100, max_tokens=28, extra_body={"ignore_eos": True}
    )
    assert full.usage.completion_tokens == 28
    rest = sdk.completions.create(
        model="builtin", prompt=[5] * 120, extra_body={"ignore_eos": True}
    )
    assert rest.usage.completion_tokens == 8


def test_errors_have_openais_form(sdk: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="is not served here"):
        sdk.chat.completions.create(model="gpt", messages=QUESTION)
    cases = [
        ("/v1/completions", {"prompt": [5, 100_000]}, 400, "token ids"),
        ("/v1/completions", {"prompt": []}, 400, "between 1 and"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "role"),
        ("/tokenize", {"messages": []}, 400, "no messages"),
        (
            "/tokenize",
            {"messages": QUESTION, "chat_template_kwargs": {"chat_template": "x"}},
            400,
            "multiple values",
        ),
        ("/v1/nothing", {}, 404, "Not Found"),
        ("/update_weights", {"weights_path": str(tmp_path), "weight_version": "x"}, 400, "below"),
    ]
    for path, body, status, said in cases:
        got, answer = post(endpoint, path, body)
        assert (got, said in answer["error"]["message"]) == (status, True), answer


def test_tokenize_agrees_with_the_template(endpoint: Endpoint, tokenizer: Any) -> None:
    _, answer = post(endpoint, "/tokenize", {"messages": QUESTION})
    assert answer["tokens"] == tokenizer.render(QUESTION)
    assert answer["max_model_len"] == 128


def test_a_client_that_goes_away_frees_its_slots(endpoint: Endpoint) -> None:
    host, port = endpoint.base_url.removesuffix("/v1").removeprefix("http://").split(":")
    body = json.dumps({"prompt": [5], "n": 500, "max_tokens": 127, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        _wait_for_running(endpoint, lambda running: running > 0)
    _wait_for_running(endpoint, lambda running: running == 0)


def _wait_for_running(endpoint: Endpoint, good: Any) -> None:
    url = endpoint.base_url.removesuffix("/v1") + "/health"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=5) as answer:
            state = json.loads(answer.read())
        if good(state["running"] + state["waiting"]):
            return
        time.sleep(0.01)
    raise AssertionError(state)


def test_the_session_swaps_weights_in_place(
    session: EngineSession, tiny_dir: Path, other_dir: Path, tmp_path: Path
) -> None:
    import shutil

    session.endpoint_for(ref(tiny_dir))
    record = session.run_dir / "processes.json"

    def pids() -> list[int]:
        return [noted["pid"] for noted in json.loads(record.read_text())]

    before = pids()
    assert len(before) == 1
    inside = session.run_dir / "sft"
    shutil.copytree(other_dir, inside, dirs_exist_ok=True)
    endpoint = session.endpoint_for(ref(inside))
    assert pids() == before
    status, answer = post(endpoint, "/v1/completions", {"prompt": [5], "max_tokens": 1})
    assert status == 200
    assert answer["choices"][0]["weight_version"] == weights_digest(other_dir)
    bad = {"weights_path": str(session.run_dir), "weight_version": "x"}
    status, answer = post(endpoint, "/update_weights", bad)
    assert (status, "no safetensors" in answer["error"]["message"]) == (400, True)
    session.endpoint_for(ref(tiny_dir))
    assert pids() == before


def test_threads_are_the_settings_or_a_share_of_the_cores(tmp_path: Path) -> None:
    shared = EngineSession(InferenceSettings(), tmp_path)
    assert shared.threads() == len(os.sched_getaffinity(0))
    assert EngineSession(InferenceSettings(threads=3), tmp_path).threads() == 3


def test_a_configured_endpoint_is_asked_first(endpoint: Endpoint, tmp_path: Path) -> None:
    settings = InferenceSettings(engine="endpoint", base_url=endpoint.base_url, api_key_var="")
    with EngineSession(settings, tmp_path) as session:
        found = session.endpoint_for(ModelRef("builtin", ""))
    assert found == Endpoint(endpoint.base_url, "builtin")
    dead = InferenceSettings(engine="endpoint", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ProviderError, match="cannot reach"):
        EngineSession(dead, tmp_path).endpoint_for(ModelRef("m", ""))
    with pytest.raises(ConfigError, match="base_url"):
        EngineSession(InferenceSettings(engine="endpoint"), tmp_path).endpoint_for(
            ModelRef("m", "")
        )


def test_an_address_that_others_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from vf_pipeline.serving.http.routes import ServerSettings
    from vf_pipeline.serving.server import serve

    monkeypatch.delenv("VF_SERVE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="VF_SERVE_API_KEY"):
        serve(ServerSettings("model", "m", host="0.0.0.0"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            serve(ServerSettings("model", "m", port=taken.getsockname()[1]))


def test_the_command_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vf_pipeline.cli.serve import main

    assert main(["--model", str(tmp_path), "--port", "0"]) == 2
    assert "config.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--model", str(tmp_path), "--max-batch", "0"])
    assert caught.value.code == 2


def test_guards_check_key_host_type_and_size() -> None:
    asyncio.run(_guards())


async def _guards() -> None:
    from aiohttp.test_utils import TestClient, TestServer

    from vf_pipeline.serving.engine.requests import Counters
    from vf_pipeline.serving.http.routes import Routes, ServerSettings

    engine: Any = SimpleNamespace(alive=True, counters=Counters(), weight_version="7")
    tokenizer: Any = SimpleNamespace()
    routes = Routes(engine, tokenizer, ServerSettings("model", "m"))
    json_type = {"Content-Type": "application/json"}
    async with TestClient(TestServer(routes.app("secret"))) as client:
        assert (await client.get("/health")).status == 200
        assert (await client.get("/weight_info")).status == 401
        strange = await client.get("/weight_info", headers={"Authorization": "Bearer \udce9"})
        assert strange.status == 401
        bearer = {"Authorization": "Bearer secret"}
        answer = await client.get("/weight_info", headers=bearer)
        assert await answer.json() == {"weight_version": "7"}
    async with TestClient(TestServer(routes.app())) as client:
        foreign = await client.get("/weight_info", headers={"Host": "evil.example:80"})
        assert foreign.status == 403
        form = await client.post("/update_weights", data=b"{}")
        assert form.status == 400
        garbage = await client.post("/v1/completions", data=b"{", headers=json_type)
        assert "not valid JSON" in (await garbage.json())["error"]["message"]
        body = io.BytesIO(b" " * (17 << 20))
        huge = await client.post("/v1/completions", data=body, headers=json_type)
        assert (huge.status, (await huge.json())["error"]["code"]) == (413, "body_too_large")
        engine.alive = False
        assert (await client.get("/health")).status == 503


@pytest.mark.slow
def test_an_engine_that_was_killed_is_started_again(session: EngineSession, tiny_dir: Path) -> None:
    session.endpoint_for(ref(tiny_dir))
    record = session.run_dir / "processes.json"
    assert reap(record) == 1
    assert reap(record) == 0
    endpoint = session.endpoint_for(ref(tiny_dir))
    assert post(endpoint, "/v1/completions", {"prompt": [5], "max_tokens": 1})[0] == 200
