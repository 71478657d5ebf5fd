"""One message as chat templates expect it: plain JSON values, and one text as its content."""

import json
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.inference.wire import sendable
from vf_pipeline.types import Message


def template_message(message: Message) -> Message:
    """Return a copy of a message for a chat template; the message itself stays as it is.

    Null becomes "" as content and is left out elsewhere (templates ask whether a field is there),
    parts of type "text" are joined, and the arguments of tool calls become dicts.

    Raises:
        ConfigError: there is no role, or the content is not text.
    """
    clean: Message = {key: value for key, value in sendable(message).items() if value is not None}
    if not isinstance(clean.get("role"), str):
        raise ConfigError("every message needs a role")
    clean["content"] = _text(clean.get("content", ""))
    for call in clean.get("tool_calls") or []:
        function = call.get("function", {})
        try:
            # Templates walk through arguments as through a dict; the API has them as JSON text.
            function["arguments"] = json.loads(function.get("arguments", "{}"))
        except (TypeError, ValueError):
            # Parsed already, or no JSON: what the model wrote goes to its template as it is.
            continue
    return clean


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ConfigError("content must be a text")
    parts = [part if isinstance(part, dict) else {} for part in content]
    other = [str(part.get("type")) for part in parts if part.get("type") != "text"]
    if other:
        raise ConfigError(f"content of type {other[0]!r} is not supported, only text")
    return "".join(str(part.get("text", "")) for part in parts)
