"""Rendering with a real tokenizer and a real ChatML template, made here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_pipeline.errors import ConfigError
from vf_pipeline.tokens.render import ChatRenderer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}]


def make_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user assistant system the answer is three hello " * 4], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> ChatRenderer:
    return ChatRenderer(folder)


def encode(renderer: ChatRenderer, text: str) -> list[int]:
    return renderer._tokenizer.encode(text)


def test_a_prompt_ends_with_the_generation_prompt(renderer: ChatRenderer) -> None:
    ids = renderer.render(USER)
    text = renderer._tokenizer.decode(ids, skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert renderer.render(USER, tools=[{"type": "function"}]) != ids
    assert renderer.decode(ids).startswith("system\nBe brief.")


def test_sampled_ids_are_never_tokenized_again(renderer: ChatRenderer) -> None:
    prompt = renderer.render(USER)
    sampled = [encode(renderer, letter)[0] for letter in "hello"] + sorted(renderer.eos_ids)
    assert renderer.decode(sampled) == "hello"
    assert encode(renderer, "hello") != sampled[:-1]

    turn2 = renderer.extend(prompt + sampled, [{"role": "user", "content": "And 2 + 2?"}])

    suffix = encode(renderer, "\n<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert turn2 == prompt + sampled + suffix


def test_a_cut_turn_is_closed_first(renderer: ChatRenderer) -> None:
    prompt = renderer.render(USER)
    sampled = encode(renderer, "hel")
    turn2 = renderer.extend(prompt + sampled, [{"role": "user", "content": "Go on."}])
    suffix = encode(
        renderer, "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert turn2 == prompt + sampled + suffix


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=20
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(answer=TEXT, question=TEXT, ended=st.booleans())
def test_extending_equals_the_whole_template_where_ids_are_canonical(
    renderer: ChatRenderer, answer: str, question: str, ended: bool
) -> None:
    said = encode(renderer, answer) + (sorted(renderer.eos_ids) if ended else [])
    new = [{"role": "user", "content": question}]
    whole = [*USER, {"role": "assistant", "content": answer}, *new]
    assert renderer.extend(renderer.render(USER) + said, new) == renderer.render(whole)


def test_several_messages_and_tool_calls_are_rendered(renderer: ChatRenderer) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert renderer.render(messages)
    ids = renderer.extend(
        renderer.render(USER),
        [{"role": "tool", "content": "3", "tool_call_id": "t"}, {"role": "user", "content": "ok"}],
    )
    text = renderer._tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith(
        "<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>user\nok<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert call["function"]["arguments"] == '{"a": 1}', "the caller's message stays as it was"


def test_end_tokens_come_from_tokenizer_and_generation_config(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    assert ChatRenderer(tmp_path).eos_ids == {1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    assert ChatRenderer(tmp_path).eos_ids == {1, 7}


def test_older_folders_keep_the_template_in_their_config(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, template=None)
    named = [
        {"name": "tool_use", "template": "t"},
        {"name": "default", "template": "{{eos_token}}"},
    ]
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    renderer = ChatRenderer(tmp_path)
    assert renderer.render(USER) == [1]
    assert renderer.eos_ids == {1}


def test_ids_are_those_of_transformers(folder: Path, renderer: ChatRenderer) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    theirs = tokenizer.apply_chat_template(
        USER, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert renderer.render(USER) == theirs


def test_rendering_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; from vf_pipeline.tokens.render import ChatRenderer;"
        f"ChatRenderer({str(folder)!r}).render([dict(role='user', content='x')]);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_cannot_render_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model folder"):
        ChatRenderer(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        ChatRenderer(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no chat template"):
        ChatRenderer(make_tokenizer(tmp_path / "bare", template=None))
    strict = make_tokenizer(
        tmp_path / "strict",
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}hi",
    )
    with pytest.raises(ConfigError, match="no system"):
        ChatRenderer(strict).render(USER)
    with pytest.raises(ConfigError, match="drops an assistant"):
        ChatRenderer(strict).extend([1], [{"role": "user", "content": "x"}])
