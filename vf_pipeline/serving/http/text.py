"""The served model's tokenizer and chat template: text and messages to ids, ids to text."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.http.errors import ApiError
from vf_pipeline.tokens.detokenize import Decode


class ServedTokenizer:
    """Turns prompts into ids. For one thread; ``decoder`` gives another thread its own.

    Raises:
        ConfigError: the folder holds no model, or no tokenizer.
    """

    def __init__(self, model_dir: str | Path) -> None:
        from transformers import AutoTokenizer

        if not (Path(model_dir) / "config.json").is_file():
            raise ConfigError(
                f"no model in {model_dir}: config.json is missing", "give a folder with a model"
            )
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(model_dir), local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"cannot load the tokenizer in {model_dir}: {error}",
                "save the tokenizer beside the weights",
            ) from error

    @property
    def eos_ids(self) -> list[int]:
        """The id that the tokenizer ends a turn with, if any."""
        eos = self._tokenizer.eos_token_id
        return [] if eos is None else [int(eos)]

    def encode(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text; ``special`` adds what the tokenizer puts around it."""
        # JSON can carry half a surrogate pair, which no tokenizer takes.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        generate: bool = True,
        variables: dict[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a chat by the model's template.

        Raises:
            ApiError: 400 when a message has no text, or the template refuses the chat.
        """
        plain = [_plain(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                plain,
                tools=list(tools) or None,
                add_generation_prompt=generate,
                tokenize=False,
                **(variables or {}),
            )
        except Exception as error:
            # Templates are programs of their authors: they raise whatever they like.
            raise ApiError(400, f"the chat template failed: {error}", "chat_template") from error
        return self.encode(text, special=False)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ids."""
        return _decode(self._tokenizer, ids, skip_special)

    def token(self, token_id: int) -> str:
        """Return the text of one id, special ones included."""
        return _decode(self._tokenizer, [token_id], False)

    def decoder(self) -> Decode:
        """Return a decoding function for one other thread: tokenizers are not thread-safe."""
        own = copy.deepcopy(self._tokenizer)
        return lambda ids: _decode(own, ids, True)


def _decode(tokenizer: Any, ids: Sequence[int], skip_special: bool) -> str:
    text = tokenizer.decode(
        list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
    )
    return str(text)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is one text: parts of type "text" are joined."""
    if not isinstance(message.get("role"), str):
        raise ApiError(400, "messages: every message needs a role", "invalid_value", "messages")
    content = message.get("content")
    if isinstance(content, list):
        parts = [p if isinstance(p, dict) else {} for p in content]
        other = [str(p.get("type")) for p in parts if p.get("type") != "text"]
        if other:
            text = f"messages: content of type {other[0]!r} is not supported, only text"
            raise ApiError(400, text, "invalid_value", "messages")
        content = "".join(str(p.get("text", "")) for p in parts)
    elif content is not None and not isinstance(content, str):
        raise ApiError(400, "messages: content must be a text", "invalid_value", "messages")
    return {**message, "content": content or ""}
