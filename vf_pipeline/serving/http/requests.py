"""What clients may ask for, in OpenAI's words and vLLM's additions.

A sampling argument that this engine does not have is refused unless it is neutral: an answer that
was sampled in another way than asked for would spoil a measurement without a trace.
"""

import difflib
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vf_pipeline.serving.engine.requests import SamplingParams
from vf_pipeline.serving.http.errors import ApiError

MOST_SEQUENCES = 1024
"""Most sequences of one HTTP request."""

# Without a part in what is sampled: taken and dropped, for clients send them by habit.
_IGNORED = {
    *("user", "store", "metadata", "service_tier", "priority", "request_id", "parallel_tool_calls"),
    *("spaces_between_special_tokens", "detokenize", "safety_identifier", "prompt_cache_key"),
}
# What these would do, this engine cannot; at these values they do nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "return_tokens_as_token_ids": (False,),
    "bad_words": ([],),
    "continue_final_message": (False,),
}


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class SamplingRequest(BaseModel):
    """What both completion routes share."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    n: int = Field(1, ge=1, le=MOST_SEQUENCES)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0.0, le=100.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    # -1 is how vLLM says "all", 0 is ours: sampling() makes them one.
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        # An empty string would be found at once, and every answer be empty.
        return tuple(s for s in given if s)

    @property
    def top_count(self) -> int | None:
        """Likeliest tokens told at each place; None when logprobs were not asked for."""
        raise NotImplementedError

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Return the sampling parameters, with the number of tokens that fits."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            stop=self.stops,
            stop_token_ids=frozenset(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            top_logprobs=self.top_count or 0,
        )


class CompletionRequest(SamplingRequest):
    """POST /v1/completions: text, ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    # As many as OpenAI's chat route tells; the engine pays a topk over the vocabulary a token.
    logprobs: int | None = Field(None, ge=0, le=20)
    add_special_tokens: bool = True

    @property
    def top_count(self) -> int | None:
        """Likeliest tokens told at each place; None when logprobs were not asked for."""
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, each for itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        # A list of ids is one prompt, a list of lists or of texts several.
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def top_count(self) -> int | None:
        """Likeliest tokens told at each place; None when logprobs were not asked for."""
        return self.top_logprobs if self.logprobs else None


class TokenizeRequest(BaseModel):
    """POST /tokenize: a text or a chat."""

    model_config = ConfigDict(extra="ignore")

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class UpdateWeightsRequest(BaseModel):
    """POST /update_weights: a folder of safetensors, and the name of its weights."""

    model_config = ConfigDict(extra="forbid")

    weights_path: str = Field(min_length=1)
    weight_version: str = Field(min_length=1)


A = TypeVar("A", bound=BaseModel)


def parse(cls: type[A], body: Any) -> A:
    """Return a request's JSON as one of the classes above; null means the default.

    Raises:
        ApiError: 400 with the name of the argument.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_body")
    # Clients send null for what they do not set; most fields would refuse it as a value.
    given = {key: value for key, value in body.items() if value is not None}
    if issubclass(cls, SamplingRequest):
        given = _without_neutral(cls, given)
    try:
        return cls.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "body"
        raise ApiError(400, f"{name}: {first['msg']}", "invalid_value", name) from None


def _without_neutral(cls: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in given.items():
        if key in cls.model_fields:
            kept[key] = value
        elif key in _NEUTRAL:
            # best_of = n leaves nothing to choose: all that are sampled are returned.
            if value not in _NEUTRAL[key] and not (key == "best_of" and value == given.get("n")):
                message = f"{key}={value!r} is not supported by the built-in engine"
                raise ApiError(400, message, "unsupported_parameter", key)
        elif key not in _IGNORED:
            # Refused rather than ignored: a misspelt "temprature" would sample another experiment.
            close = difflib.get_close_matches(key, cls.model_fields, n=1)
            advice = f"; did you mean {close[0]!r}?" if close else ""
            message = f"unknown or unsupported argument {key!r}{advice}"
            raise ApiError(400, message, "unknown_parameter", key)
    return kept


def tokens_that_fit(prompt_tokens: int, asked: int | None, max_context: int) -> int:
    """Return how many tokens may be sampled behind a prompt.

    Raises:
        ApiError: 400 when prompt and completion exceed the context, in vLLM's words.
    """
    # In vLLM's words, for clients tell an overlong prompt by them (inference/diagnosis.py): the
    # protocol has no code of its own for it. Without a limit one token must fit at least.
    wanted = 1 if asked is None else asked
    if prompt_tokens + wanted > max_context:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_context} tokens. However, you requested "
            f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the prompt, {wanted} in the "
            "completion). Please reduce the length of the prompt or the completion.",
            "context_length_exceeded",
            "messages",
        )
    return max_context - prompt_tokens if asked is None else asked
