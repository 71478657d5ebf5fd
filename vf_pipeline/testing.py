"""Fakes for whoever writes environments: a scripted client, an echo, and a tiny real model."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vf_pipeline.environments import SingleTurnEnv
from vf_pipeline.errors import ConfigError
from vf_pipeline.rubrics import Rubric
from vf_pipeline.types import Message, Messages, ModelRef

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 has it, without that model's default system message."""

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Reply:
    """A scripted reply with more than a text: why it ended, and calls of tools as (name, JSON)."""

    text: str = ""
    finish_reason: str = "stop"
    tool_calls: tuple[tuple[str, str], ...] = ()


Scripted = str | Reply | BaseException
Replies = Sequence[Scripted] | Callable[[Any], Scripted]


@dataclass
class FakeClient:
    """Answers as an ``AsyncOpenAI`` does, without a model.

    ``client.chat.completions.create`` and ``client.completions.create`` return openai's own
    objects, with ``n`` choices and usage (a token is a word). Requests are kept in ``requests``.

    Args:
        replies: texts, ``Reply`` objects and exceptions (which are raised), one a choice, in
            turn and from the start again; or a function from the prompt to one of these.
        latency_s: how long each answer takes, in seconds.

    Example:
        >>> import asyncio
        >>> import vf_pipeline as vf
        >>> client = vf.FakeClient(["yes", "no", ConnectionError("gone")])
        >>> messages = [{"role": "user", "content": "Is 7 odd?"}]
        >>> answer = asyncio.run(client.chat.completions.create(model="m", messages=messages, n=2))
        >>> [choice.message.content for choice in answer.choices], answer.usage.prompt_tokens
        (['yes', 'no'], 3)
        >>> client.requests[0]["model"], client.requests[0]["n"]
        ('m', 2)
        >>> asyncio.run(client.chat.completions.create(model="m", messages=messages))
        Traceback (most recent call last):
        ConnectionError: gone

        A function answers by the prompt:

        >>> echo = vf.FakeClient(lambda prompt: prompt[-1]["content"])
        >>> answer = asyncio.run(echo.chat.completions.create(model="m", messages=messages))
        >>> answer.choices[0].message.content
        'Is 7 odd?'
    """

    replies: Replies
    latency_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        """Lay out the interface's tree."""
        if not callable(self.replies) and not self.replies:
            raise ConfigError("a FakeClient needs at least one reply", 'FakeClient(["yes"])')
        self._next = 0
        self._in_flight = 0
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._chat))
        self.completions = SimpleNamespace(create=self._complete)
        self.models = SimpleNamespace(list=self._models)

    async def __aenter__(self) -> "FakeClient":
        """Return the client itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: there is nothing to close."""

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def _chat(
        self, *, model: str, messages: list[Message], n: int = 1, **kwargs: Any
    ) -> "ChatCompletion":
        from openai.types.chat import ChatCompletion

        request = {"model": model, "messages": messages, "n": n, **kwargs}
        replies = await self._answer(request, messages, n)
        choices = [
            {
                "index": i,
                "finish_reason": reply.finish_reason,
                "message": {"role": "assistant", "content": reply.text, **_calls(reply)},
            }
            for i, reply in enumerate(replies)
        ]
        body = {**self._body(model, messages, replies), "object": "chat.completion"}
        return ChatCompletion.model_validate({**body, "choices": choices})

    async def _complete(
        self, *, model: str, prompt: Any, n: int = 1, **kwargs: Any
    ) -> "Completion":
        from openai.types import Completion

        request = {"model": model, "prompt": prompt, "n": n, **kwargs}
        replies = await self._answer(request, prompt, n)
        choices = [
            {"index": i, "finish_reason": reply.finish_reason, "text": reply.text}
            for i, reply in enumerate(replies)
        ]
        body = {**self._body(model, prompt, replies), "object": "text_completion"}
        return Completion.model_validate({**body, "choices": choices})

    async def _models(self) -> Any:
        from openai.pagination import AsyncPage
        from openai.types import Model

        model = Model(id="fake", created=0, object="model", owned_by="tests")
        return AsyncPage[Model](data=[model], object="list")

    async def _answer(self, request: dict[str, Any], prompt: Any, n: int) -> list[Reply]:
        self.requests.append(copy.deepcopy(request))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.latency_s)
            return [self._reply(prompt) for _ in range(n)]
        finally:
            self._in_flight -= 1

    def _reply(self, prompt: Any) -> Reply:
        if callable(self.replies):
            scripted = self.replies(prompt)
        else:
            scripted = self.replies[self._next % len(self.replies)]
            self._next += 1
        if isinstance(scripted, BaseException):
            raise scripted
        return Reply(scripted) if isinstance(scripted, str) else scripted

    def _body(self, model: str, prompt: Any, replies: list[Reply]) -> dict[str, Any]:
        asked, answered = _words(prompt), sum(_words(reply.text) for reply in replies)
        usage = {"prompt_tokens": asked, "completion_tokens": answered}
        return {
            "id": f"fake-{len(self.requests)}",
            "created": 0,
            "model": model,
            "usage": {**usage, "total_tokens": asked + answered},
        }


class EchoEnvironment(SingleTurnEnv):
    """Asks for its question back: reward 1 for the same text, 0 for another.

    Args:
        num_examples: number of questions, "echo 0", "echo 1", …
        **kwargs: those of ``Environment``.
    """

    def __init__(self, num_examples: int = 8, **kwargs: Any) -> None:
        texts = [f"echo {i}" for i in range(num_examples)]
        kwargs.setdefault("dataset", [{"question": t, "answer": t, "task": "echo"} for t in texts])
        kwargs.setdefault("rubric", Rubric([_same_text]))
        kwargs.setdefault("env_id", "echo")
        super().__init__(**kwargs)
        self.version = "1"


def make_tiny_model(
    folder: str | Path, seed: int = 0, texts: Sequence[str] | None = None
) -> ModelRef:
    """Write a tiny Llama with random weights and a byte-level tokenizer; takes seconds.

    The model has 2 layers, hidden size 64 and 512 positions; the tokenizer about 400 tokens and a
    ChatML template, and ends a turn with ``<|im_end|>``.

    Args:
        folder: where it is written, as ``save_pretrained`` does.
        seed: the same seed and texts give the same files.
        texts: what the tokenizer learns its tokens from.

    Returns:
        The folder, with the digest of the weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(folder)
    tokenizer = _tiny_tokenizer(list(texts) if texts is not None else _texts())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=end,
        pad_token_id=end,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelRef(str(folder), _weights_digest(folder))


def _tiny_tokenizer(texts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast  # its constructor has no annotations
    return fast(
        tokenizer_object=bpe,
        unk_token=_SPECIAL[0],
        bos_token=_SPECIAL[1],
        eos_token=_SPECIAL[2],
        pad_token=_SPECIAL[2],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _texts() -> list[str]:
    numbers = [f"Which number is larger: {a} or {a + 7}?" for a in range(10, 90)]
    return [
        "system user assistant Answer with just the result.",
        "Which number comes right after 10? Which number stands last: 1, 2, 3?",
        "Which number is the largest: 10, 20 or 30? even odd yes no echo the quick brown fox",
        *numbers,
    ]


def _weights_digest(folder: Path) -> str:
    from vf_pipeline.models.weights import weights_digest

    return weights_digest(folder)


def _same_text(completion: Messages, prompt: Messages) -> float:
    return float(_last_text(completion) == _last_text(prompt))


def _last_text(messages: Messages) -> str:
    return messages if isinstance(messages, str) else str(messages[-1]["content"])


def _calls(reply: Reply) -> dict[str, Any]:
    calls = [
        {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(reply.tool_calls)
    ]
    return {"tool_calls": calls} if calls else {}


def _words(prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(prompt.split())
    return sum(_words(str(m.get("content") or "")) if isinstance(m, dict) else 1 for m in prompt)
