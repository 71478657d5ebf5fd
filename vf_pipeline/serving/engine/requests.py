"""What HTTP and an engine have in common: what is asked for, what was sampled. No torch.

``http/`` knows an engine by ``SamplingEngine`` alone, so that it runs without torch.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of an engine: sequences, tokens a sequence, megabytes of keys and values, threads."""

    max_batch: int = 64
    max_context: int = 512
    kv_budget_mb: int = 1024
    threads: int = 1
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are drawn.

    ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep all tokens; ``min_p`` drops tokens
    below that share of the likeliest one's probability. ``top_logprobs`` asks for that many of the
    likeliest tokens at each place.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    top_logprobs: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        # vLLM's threshold (_SAMPLING_EPS): dividing by less is numerically no sampling any more.
        return self.temperature < 1e-5

    @property
    def filtered(self) -> bool:
        """Whether some tokens are cut off before sampling."""
        cut = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        return cut and not self.greedy


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One sampled token, as it is told to a streaming client.

    ``logprob`` is the natural logarithm of its probability under the sampling distribution (greedy:
    under the model's own); ``top`` are the likeliest (id, logprob) pairs that were asked for.
    """

    index: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    weight_version: str = ""


@dataclass(slots=True)
class Sample:
    """One completion: ids, their logprobs (same length), and why it ended.

    The end-of-turn token, if one was sampled, is the last id.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    weight_version: str = ""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """``n`` samples of one prompt, and the future that will hold them.

    Sample i draws from ``(seed, i, place)`` alone, so that it does not depend on what else runs.
    ``on_token`` is called in the engine's thread, for each token.
    """

    # Compared as objects (eq=False): two callers may ask for the very same.
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    seed: int = 0
    on_token: Callable[[TokenEvent], None] | None = None
    future: "Future[list[Sample]]" = field(default_factory=Future)
    # By index: samples end in any order, and some may start when others are done.
    samples: dict[int, Sample] = field(default_factory=dict)
    started: int = 0

    @property
    def length(self) -> int:
        """Places in the cache that one sample may need."""
        # The last sampled token is never fed back: its place is spare, and takes padding.
        return len(self.prompt_ids) + self.params.max_tokens

    @property
    def waiting(self) -> int:
        """Samples that have no slot yet."""
        return self.n - self.started


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """An order to load other weights in place: folder, name of the version, when to give up.

    ``deadline`` is a time.monotonic(); the order fails if sequences still run then.
    """

    folder: str
    version: str
    deadline: float
    future: "Future[str]" = field(default_factory=Future)


@dataclass(slots=True)
class Counters:
    """What the engine has done since its start; read by /health."""

    # Written by the engine's thread alone and read without a lock: a figure may be one turn old,
    # never torn.
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0
    sampled_tokens: int = 0


class SamplingEngine(Protocol):
    """What the HTTP routes need of an engine."""

    @property
    def counters(self) -> Counters:
        """What was done so far."""

    @property
    def alive(self) -> bool:
        """Whether it still works."""

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sent as ids."""

    @property
    def weight_version(self) -> str:
        """Name of the weights that sample now."""

    def submit(self, item: GenerationRequest | WeightUpdate) -> None:
        """Queue a request or a weight update; its future holds the outcome. Thread-safe."""
