"""One conversation, one list of ids: client, server, SFT and transformers' own tokenizer agree."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vf_pipeline.inference.wire import sendable
from vf_pipeline.serving.http.routes import Routes, ServerSettings
from vf_pipeline.tokens.render import ChatRenderer
from vf_pipeline.tokens.tokenizer import ChatTokenizer
from vf_pipeline.training.trainer.sft import encode_rows
from vf_pipeline.types import Message

PROMPTS: dict[str, list[Message]] = {
    "one question": [{"role": "user", "content": "Which is larger: 12 or 19?"}],
    "system, user, assistant": [
        {"role": "system", "content": "Answer with just the result."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": " 2\n"},
        {"role": "user", "content": "And 2 + 2?  "},
    ],
    "unicode": [{"role": "user", "content": "½ 😀 naïve 漢字 e\u0301 \u00a0\t\n\x00 שלום"}],
    "half surrogates": [{"role": "user", "content": "cut \ud83d here, whole \ud83d\ude00"}],
    "special tokens in the text": [
        {"role": "user", "content": "say <|im_end|>\n<|im_start|>system\nx<|endoftext|>"},
    ],
    "null and empty": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "user", "content": "?"},
    ],
}
ANSWERS = ["4", " ½ 😀\n", "cut \ud83d", "say <|im_end|> twice", ""]


def _smollm2() -> Path | None:
    cache = Path(os.environ["VF_CACHE"]) / "models"
    return next((path.parent for path in cache.glob("smollm2-135m-*/tokenizer.json")), None)


@pytest.fixture(scope="module", params=["tiny", "smollm2-135m"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tiny":
        from vf_pipeline.testing import make_tiny_model

        made = tmp_path_factory.mktemp("tiny") / "model"
        make_tiny_model(made)
        return made
    found = _smollm2()
    if found is None:
        pytest.skip("smollm2-135m is not in the cache; make setup fetches it")
    return found


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def transformers_ids(oracle: Any, messages: list[Message], generate: bool = True) -> list[int]:
    # It takes neither half surrogates nor null as content.
    clean = [
        {**sendable(message), "content": sendable(message["content"]) or ""} for message in messages
    ]
    text = oracle.apply_chat_template(clean, tokenize=False, add_generation_prompt=generate)
    ids: list[int] = oracle(text, add_special_tokens=False)["input_ids"]
    return ids


async def _tokenize(folder: Path, bodies: list[dict[str, Any]]) -> list[list[int]]:
    from aiohttp.test_utils import TestClient, TestServer

    routes = Routes(
        SimpleNamespace(),  # type: ignore[arg-type]
        ChatTokenizer.load(folder),
        ServerSettings(str(folder), "m"),
    )
    found = []
    async with TestClient(TestServer(routes.app())) as client:
        for body in bodies:
            answer = await client.post("/tokenize", json=body)
            found.append((await answer.json())["tokens"])
    return found


def test_prompts_have_the_same_ids_everywhere(folder: Path, oracle: Any) -> None:
    renderer = ChatRenderer(folder)
    served = asyncio.run(_tokenize(folder, [{"messages": prompt} for prompt in PROMPTS.values()]))
    rows = encode_rows(str(folder), [(prompt, "4") for prompt in PROMPTS.values()])
    for (name, prompt), server_ids, row in zip(PROMPTS.items(), served, rows, strict=True):
        expected = transformers_ids(oracle, prompt)
        assert renderer.render(prompt) == expected, name
        assert server_ids == expected, name
        assert list(row.prompt_ids) == expected, name


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_end_as_in_the_template(folder: Path, oracle: Any, answer: str) -> None:
    prompt = PROMPTS["one question"]
    (row,) = encode_rows(str(folder), [(prompt, answer)])
    whole = transformers_ids(oracle, [*prompt, {"role": "assistant", "content": answer}], False)
    ids = [*row.prompt_ids, *row.completion_ids]
    assert ids == whole[: len(ids)]
    assert ids[-1] == oracle.eos_token_id
    assert oracle.decode(whole[len(ids) :]).strip() == "", "only a line break is left out"


def test_texts_have_the_same_ids_and_back(folder: Path, oracle: Any) -> None:
    tokenizer = ChatTokenizer.load(folder)
    texts = [str(prompt[-1]["content"]) for prompt in PROMPTS.values()]
    served = asyncio.run(_tokenize(folder, [{"prompt": text} for text in texts]))
    decode = tokenizer.decoder()
    for text, server_ids in zip(texts, served, strict=True):
        expected = oracle(sendable(text))["input_ids"]
        assert server_ids == tokenizer.encode(text, special=True) == expected
        assert (
            tokenizer.encode(text) == oracle(sendable(text), add_special_tokens=False)["input_ids"]
        )
        for skip in (True, False):
            theirs = oracle.decode(
                expected, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert tokenizer.decode(expected, skip) == theirs
        assert decode(expected) == tokenizer.decode(expected)
        assert [tokenizer.token_text(i) for i in expected] == [oracle.decode([i]) for i in expected]


def test_special_tokens_are_those_of_transformers(folder: Path, oracle: Any) -> None:
    tokenizer = ChatTokenizer.load(folder)
    assert tokenizer.special == oracle.special_tokens_map
    assert tokenizer.special_ids == set(oracle.all_special_ids)
    assert oracle.eos_token_id in tokenizer.eos_ids
