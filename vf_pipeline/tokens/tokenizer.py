"""A model's tokenizer and chat template from its folder, without torch: one for all processes.

The server, the client that renders prompts and the encoding of SFT rows use this one, so that a
conversation has the same ids wherever it is rendered.

Deliberately lacks transformers' tokenizer classes: they import torch where it is installed, and
cost a rollout worker 260 MB and two seconds. ``tokenizer.json`` holds the whole tokenizer, and the
template is rendered by transformers' own function.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.plain import whole_text
from vf_pipeline.tokens.detokenize import Decode
from vf_pipeline.tokens.messages import template_message
from vf_pipeline.types import Message


@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    """A tokenizer, its chat templates by name, and the special tokens that they may name.

    Example::

        tokenizer = ChatTokenizer.load(Path("models/smollm2"))
        ids = tokenizer.render([{"role": "user", "content": "What is 1 + 2?"}])
        text = tokenizer.decode(ids)

    ``special`` are the named special tokens (``eos_token``, …); ``extra`` those without a name.
    """

    folder: Path
    backend: Any
    templates: dict[str, str]
    special: dict[str, str]
    extra: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> "ChatTokenizer":
        """Return what a model folder holds; nothing is downloaded.

        Raises:
            ConfigError: the folder holds no tokenizer.
        """
        from tokenizers import Tokenizer

        if not folder.is_dir():
            raise ConfigError(f"no model folder {str(folder)!r}", "give a local folder of weights")
        file = folder / "tokenizer.json"
        if not file.exists():
            raise ConfigError(
                f"{folder} holds no tokenizer.json",
                "write one with transformers: AutoTokenizer.from_pretrained(d).save_pretrained(d)",
            )
        try:
            backend = Tokenizer.from_file(str(file))
        except Exception as error:  # The backend raises nothing more specific.
            raise ConfigError(f"{file} is no tokenizer that can be read: {error}") from error
        # tokenizer.json may carry both from its training; prompts would be cut without a word.
        backend.no_truncation()
        backend.no_padding()
        config = read_config(folder / "tokenizer_config.json")
        # The older file yields: transformers 5 no longer writes it.
        config = {**read_config(folder / "special_tokens_map.json"), **config}
        return cls(folder, backend, _templates(folder, config), _special(config), _extra(config))

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Return the ids of a text.

        Args:
            text: special tokens that are written in it become their ids.
            special: whether the tokenizer adds what it puts around a text, such as a first token.
        """
        # The backend takes no lone surrogates, which a model's text may hold (half an emoji).
        return list(self.backend.encode(whole_text(text), add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """Return the text of one id, special ones included."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, or None where the vocabulary lacks it."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)

    def decoder(self) -> Decode:
        """Return a decoding function for one other thread, with a tokenizer of its own."""
        own = copy.deepcopy(self.backend)
        return lambda ids: str(own.decode(list(ids), skip_special_tokens=True))

    @property
    def eos_token(self) -> str:
        """The token that ends a turn.

        Raises:
            ConfigError: the tokenizer names none.
        """
        if "eos_token" not in self.special:
            raise ConfigError(
                f"the tokenizer in {self.folder} names no end-of-turn token",
                "name one as eos_token in its tokenizer_config.json",
            )
        return self.special["eos_token"]

    @property
    def eos_ids(self) -> frozenset[int]:
        """All ids that end a turn: the tokenizer's own, and those of the generation config."""
        own = self.token_id(self.special.get("eos_token", ""))
        found = set() if own is None else {own}
        listed = read_config(self.folder / "generation_config.json").get("eos_token_id")
        if listed is not None:
            found.update(listed if isinstance(listed, list) else [listed])
        return frozenset(found)

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, with a name and without."""
        ids = [self.token_id(token) for token in (*self.special.values(), *self.extra)]
        return frozenset(found for found in ids if found is not None)

    def template(self, tools: Any = None) -> str:
        """Return the chat template; some models have one of their own for chats with tools.

        Raises:
            ConfigError: there is none.
        """
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise ConfigError(
                f"the tokenizer in {self.folder} has no chat template",
                "add a chat_template.jinja, or use a completion environment",
            )
        return self.templates[name]

    def text(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        generate: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as the template writes it.

        Args:
            messages: what was said so far; their content is text.
            tools: JSON schemas of tools, or None.
            generate: whether the generation prompt is put at the end.
            variables: further variables of the template, over those of the special tokens.

        Raises:
            ConfigError: there is no template, or it refuses these messages.
        """
        # When used: a renderer that is only asked to decode does not pay for it.
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self.template(tools)
        if not messages:
            raise ConfigError("there are no messages to render")
        clean = [template_message(message) for message in messages]
        try:
            rendered = render_jinja_template(
                conversations=[clean],
                tools=tools or None,
                chat_template=template,
                add_generation_prompt=generate,
                **{**self.special, **(variables or {})},
            )
        except Exception as error:
            # Templates are programs of their authors: they raise whatever they like.
            roles = ", ".join(str(message["role"]) for message in clean)
            raise ConfigError(
                f"the chat template in {self.folder} refuses messages of the roles {roles}: {error}"
            ) from error
        # One text for each conversation, beside the token masks that nobody asked for.
        return str(rendered[0][0])

    def render(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        generate: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation; arguments and errors are those of ``text``."""
        # Without the tokenizer's own first token: the template writes it where it belongs.
        return self.encode(self.text(messages, tools, generate, variables))


def read_config(file: Path) -> dict[str, Any]:
    """Return a JSON file of a model folder; an absent one is empty.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    if file.exists():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        named = {path.stem: path.read_text(encoding="utf-8") for path in more}
        return {**named, "default": file.read_text(encoding="utf-8")}
    template = config.get("chat_template")
    if isinstance(template, list):
        return {str(entry.get("name")): str(entry.get("template")) for entry in template}
    return {"default": str(template)} if template else {}


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: _content(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _extra(config: Mapping[str, Any]) -> tuple[str, ...]:
    # Renamed in transformers 5; folders of either age are met.
    listed = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = listed.values() if isinstance(listed, dict) else listed
    return tuple(text for text in map(_content, values) if isinstance(text, str))


def _content(token: Any) -> Any:
    """Return a token's text: configs write it plain, or as an object with flags."""
    return token.get("content") if isinstance(token, dict) else token
