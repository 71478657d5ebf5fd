"""What a model folder's tokenizer files mean, and what messages templates get."""

import json
from pathlib import Path

import pytest

from vf_pipeline.errors import ConfigError
from vf_pipeline.testing import make_tiny_model
from vf_pipeline.tokens.messages import template_message
from vf_pipeline.tokens.tokenizer import ChatTokenizer

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_model(tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **values: object) -> ChatTokenizer:
    """Return the tokenizer of a folder whose config says something else."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | values))
    return ChatTokenizer.load(folder)


def test_a_missing_template_is_refused_only_when_a_chat_is_rendered(folder: Path) -> None:
    tokenizer = configure(folder)
    assert tokenizer.decode(tokenizer.encode("1 + 1")) == "1 + 1"
    with pytest.raises(ConfigError, match="no chat template"):
        tokenizer.render(HI)


def test_chats_with_tools_may_have_a_template_of_their_own(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = configure(folder, chat_template=named)
    assert tokenizer.text(HI) == "plain"
    assert tokenizer.text(HI, tools=[]) == "plain"
    assert tokenizer.text(HI, tools=[{"type": "function"}]) == "tools"


def test_variables_reach_the_template_and_its_faults_are_ours(folder: Path) -> None:
    tokenizer = configure(folder, chat_template="{{ eos_token }}{{ mood }}{{ 1 // zero }}")
    variables = {"mood": "calm", "zero": 1}
    assert tokenizer.text(HI, variables=variables) == "<|im_end|>calm1"
    assert tokenizer.text(HI, variables={**variables, "eos_token": "!"}) == "!calm1"
    with pytest.raises(ConfigError, match=r"roles user: .*division|roles user: .*modulo"):
        tokenizer.text(HI, variables={"zero": 0})
    with pytest.raises(ConfigError, match="multiple values"):
        tokenizer.text(HI, variables={"chat_template": "x"})
    with pytest.raises(ConfigError, match="no messages"):
        tokenizer.text([])


def test_the_end_of_turn_may_be_unnamed(folder: Path) -> None:
    with pytest.raises(ConfigError, match="names no end-of-turn token"):
        _ = configure(folder, eos_token=None).eos_token


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user"}, ""),
        ({"role": "user", "content": None, "name": None}, ""),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "a"),
        ({"role": "user", "content": "\ud83d\ude00 \ud83d"}, "😀 \ufffd"),
    ],
)
def test_content_becomes_one_text(message: dict[str, object], content: str) -> None:
    assert template_message(message) == {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "a"}, "needs a role"),
        ({"role": "user", "content": 5}, "must be a text"),
        ({"role": "user", "content": ["a"]}, "only text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "'image_url' is not supported"),
    ],
)
def test_what_is_no_text_is_refused(message: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        template_message(message)
