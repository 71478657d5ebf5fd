"""A client that speaks in token ids: prompts go out as ids, sampled ids come back with logprobs.

Looks like the chat interface to environments. A conversation that goes on keeps the ids it had;
only where an environment rewrites its history is it rendered anew, and counted as a fork.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vf_pipeline.errors import ConfigError, MalformedResponseError
from vf_pipeline.inference.client import Client
from vf_pipeline.inference.wire import sendable
from vf_pipeline.tokens.render import ChatRenderer
from vf_pipeline.types import Message

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

# A bound on memory, far above the turns of one rollout.
_REMEMBERED = 1024
# Set by us, or without a meaning at /v1/completions.
_OURS = ("logprobs", "top_logprobs", "stream", "tool_choice", "parallel_tool_calls")
_FINISHES = {"stop", "length", "content_filter"}


class TokenClient:
    """A chat client over ``/v1/completions``.

    Answers are ChatCompletions with more on them: ``prompt_token_ids``, and on every choice
    ``token_ids``, ``token_logprobs`` (as long) and ``weight_version``.

    One object remembers conversations by their text. Two rollouts that said the same in other
    tokens need one each: see ``for_rollout``.

    Args:
        client: asks the server.
        renderer: the served model's template and tokenizer.
    """

    def __init__(self, client: Client, renderer: ChatRenderer) -> None:
        self.client = client
        self.renderer = renderer
        self.forks = 0
        self.chat = _Chat(self)
        self._parent: TokenClient | None = None
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    @property
    def completions(self) -> Any:
        """The underlying client's text completions."""
        return self.client.completions

    @property
    def models(self) -> Any:
        """The underlying client's list of models."""
        return self.client.models

    def for_rollout(self) -> "TokenClient":
        """Return a client with a memory of its own; its forks are counted here as well."""
        own = TokenClient(self.client, self.renderer)
        own._parent = self
        return own

    async def create(
        self, *, model: str, messages: Sequence[Message], tools: Any = None, **sampling: Any
    ) -> "ChatCompletion":
        """Return the answer to a chat, sampled from the ids that we rendered.

        Raises:
            ProviderError: the server failed, or gave no token ids.
            ConfigError: the template refuses the messages, or a stream was asked for.
        """
        if sampling.get("stream"):
            raise ConfigError("this client gives whole answers only", "remove stream=True")
        prompt_ids = self.prompt_ids(messages, tools)
        sampling = _for_completions(sampling)
        answer = await self.client.completions.create(model=model, prompt=prompt_ids, **sampling)
        chat = _as_chat(answer, prompt_ids, self.client.endpoint.base_url)
        # Which of several the conversation goes on with is not known here.
        if len(chat.choices) == 1:
            self.remember(messages, chat, tools)
        return chat

    def prompt_ids(self, messages: Sequence[Message], tools: Any = None) -> list[int]:
        """Return a conversation's ids: what was sent and sampled so far, extended by what is new.

        Raises:
            ConfigError: the template refuses the messages.
        """
        answered = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        # The longest known conversation first: so more of its ids are those that were sampled. One
        # that ends with the answer has nothing to be extended by.
        for last in reversed(answered):
            known = self._known.get(_key(messages[: last + 1], tools))
            if known is not None and last + 1 < len(messages):
                return self.renderer.extend(known, messages[last + 1 :])
        # Without an answer in it, or a memory, this is a first turn and no fork.
        if self._known and answered:
            self._count_fork()
        return self.renderer.render(messages, tools)

    def remember(
        self, messages: Sequence[Message], answer: "ChatCompletion", tools: Any = None
    ) -> None:
        """Keep the ids of a conversation and of the first choice that answered it."""
        choice: Any = answer.choices[0]
        said = {"role": "assistant", "content": choice.message.content}
        ids = (*answer.prompt_token_ids, *choice.token_ids)  # type: ignore[attr-defined]
        self._known[_key([*messages, said], tools)] = ids
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _count_fork(self) -> None:
        self.forks += 1
        if self._parent is not None:
            self._parent._count_fork()


class _Chat:
    def __init__(self, client: TokenClient) -> None:
        self.completions = client


def _key(messages: Sequence[Message], tools: Any) -> str:
    """Return a conversation's identity, blind to null contents and to the edges of answers."""
    return json.dumps([[_canonical(message) for message in messages], sendable(tools)])


def _canonical(message: Message) -> list[Any]:
    content = sendable(message.get("content"))
    if message["role"] == "assistant" and isinstance(content, str):
        # Environments hand answers back stripped.
        content = content.strip()
    calls = sendable(message.get("tool_calls")) or None
    return [message["role"], content or "", calls, message.get("tool_call_id")]


def _for_completions(sampling: dict[str, Any]) -> dict[str, Any]:
    """Return chat sampling arguments in the completion endpoint's words, asking for ids."""
    kept = {key: value for key, value in sampling.items() if key not in _OURS}
    limit = kept.pop("max_completion_tokens", None)
    if limit is not None and kept.get("max_tokens") is None:
        kept["max_tokens"] = limit
    # 0 is the sampled token's own logprob and no alternatives; leaving it out gives none.
    kept["logprobs"] = 0
    kept["extra_body"] = {**(kept.get("extra_body") or {}), "return_token_ids": True}
    return kept


def _as_chat(answer: Any, prompt_ids: list[int], url: str) -> "ChatCompletion":
    from openai.types.chat import ChatCompletion

    fields = {
        "id": answer.id or "",
        "object": "chat.completion",
        "created": answer.created or 0,
        "model": answer.model or "",
        "usage": answer.usage,
        "choices": [_as_chat_choice(choice, answer, prompt_ids, url) for choice in answer.choices],
        "prompt_token_ids": prompt_ids,
    }
    return ChatCompletion.model_validate(fields)


def _as_chat_choice(choice: Any, answer: Any, prompt_ids: list[int], url: str) -> dict[str, Any]:
    ids = getattr(choice, "token_ids", None)
    logprobs = getattr(choice.logprobs, "token_logprobs", None)
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise MalformedResponseError(
            f"{url} did not answer with the ids and logprobs of the sampled tokens",
            "serve with vf-serve, or with a vLLM that knows return_token_ids",
        )
    # A server that adds a first token of its own would shift all that is trained on.
    if (getattr(choice, "prompt_token_ids", None) or prompt_ids) != prompt_ids:
        raise MalformedResponseError(f"{url} sampled from other prompt ids than it was sent")
    version = getattr(choice, "weight_version", None) or getattr(answer, "weight_version", None)
    finish = choice.finish_reason
    return {
        "index": choice.index,
        # An aborted completion was cut off, whatever the server calls it.
        "finish_reason": finish if finish in _FINISHES else "length",
        "message": {"role": "assistant", "content": choice.text},
        # In token_logprobs instead: the chat's form has texts of tokens, not their ids.
        "logprobs": None,
        "token_ids": ids,
        "token_logprobs": logprobs,
        "weight_version": "" if version is None else str(version),
    }
