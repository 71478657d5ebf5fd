"""A model's tokenizer and chat template from its folder, without torch.

Deliberately lacks transformers' tokenizer classes: they import torch where it is installed, and
cost a rollout worker 260 MB and two seconds. ``tokenizer.json`` holds the whole tokenizer, and the
template is rendered by transformers' own function.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.types import Message


@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    """A tokenizer, its chat template, and the special tokens that the template may name."""

    folder: Path
    backend: Any
    template: str
    special: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> "ChatTokenizer":
        """Return what a model folder holds; nothing is downloaded.

        Raises:
            ConfigError: the folder holds no tokenizer, or one without a chat template.
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
        backend.no_truncation()
        backend.no_padding()
        config = read_config(folder / "tokenizer_config.json")
        return cls(folder, backend, _template(folder, config), _special_tokens(folder, config))

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text; special tokens come from the text alone, none is added."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, or None where the vocabulary lacks it."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)

    def text(self, messages: Sequence[Message], tools: Any, generate: bool) -> str:
        """Return a conversation as the template writes it.

        Args:
            messages: plain messages.
            tools: JSON schemas of tools, or None.
            generate: whether the generation prompt is put at the end.

        Raises:
            ConfigError: the template refuses these messages.
        """
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered = render_jinja_template(
                conversations=[list(messages)],
                tools=tools,
                chat_template=self.template,
                add_generation_prompt=generate,
                **self.special,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template in {self.folder} refuses messages of the roles {roles}: {error}"
            ) from error
        # One text for each conversation, beside the token masks that nobody asked for.
        return str(rendered[0][0])


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


def _template(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    if not template:
        raise ConfigError(
            f"the tokenizer in {folder} has no chat template",
            "add a chat_template.jinja, or use a completion environment",
        )
    return str(template)


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    values = {**read_config(folder / "special_tokens_map.json"), **config}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in values.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
