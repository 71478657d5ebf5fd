"""The nouns of the house: what travels between its rooms.

Values are frozen; ``State`` alone is a dict, for the users who write environments, and lives only
inside a running rollout.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
"""A chat message in OpenAI's form: ``role``, ``content``, ``tool_calls``, ``tool_call_id``."""

Messages = str | list[Message]
"""A prompt or a completion: chat messages, or plain text for completion models."""

State = dict[str, Any]
"""What an environment remembers while a rollout runs."""

Info = dict[str, Any]
SamplingArgs = dict[str, Any]

StopReason = Literal["stop", "length", "max_turns", "environment", "error"]
"""Why a rollout ended: by the model itself, a token or turn limit, the environment, an error."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset, ready to be played.

    ``example_id`` is the row's ordinal in its dataset; ``digest`` identifies its content.
    """

    example_id: int
    prompt: Messages
    answer: str = ""
    task: str = "default"
    info: Info = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a rollout cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as data: the boundary that was crossed, and the cause."""

    boundary: Literal["provider", "environment", "rubric"]
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """Which weights: the one name for them, from the engine that serves them to the trained sample.

    ``digest`` is that of the weights themselves, or of the training that makes them step by step;
    ``step`` counts the optimizer steps since. On the wire it is a text: ``digest`` or
    ``digest@step``.

    >>> WeightVersion.parse("3f2a@7")
    WeightVersion(digest='3f2a', step=7)
    >>> str(WeightVersion("3f2a"))
    '3f2a'
    """

    digest: str
    step: int = 0

    def __str__(self) -> str:
        return f"{self.digest}@{self.step}" if self.step else self.digest

    @classmethod
    def parse(cls, text: str) -> "WeightVersion":
        """Return the version that a text names; a text without a step is at step 0."""
        digest, _, step = text.partition("@")
        return cls(digest, int(step) if step.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled turn, token by token.

    ``prompt_ids`` are the ids that were sent, ``completion_ids`` the ids that were sampled, and
    ``logprobs`` (same length) their log-probabilities under the sampling distribution.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    weights: str = ""
    """Text of the WeightVersion that sampled; empty where the server does not say."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One play of one example. A bad rollout is data: ``error`` says what went wrong."""

    example_id: int
    index: int
    example_digest: str
    task: str
    prompt: Messages
    completion: Messages
    answer: str
    stop_reason: StopReason
    turns: tuple[Turn, ...] = ()
    usage: Usage = Usage()
    duration_s: float = 0.0
    error: Failure | None = None

    @property
    def key(self) -> str:
        """The identity of this play within its journal."""
        return rollout_key(self.example_digest, self.example_id, self.index)

    @property
    def truncated(self) -> bool:
        """Whether a token limit cut the answer."""
        return self.stop_reason == "length"


def rollout_key(example_digest: str, example_id: int, index: int) -> str:
    """Return the journal key of play ``index`` of one example: content, ordinal, index."""
    return f"{example_digest}:{example_id}:{index}"


@dataclass(frozen=True, slots=True)
class Score:
    """What a rubric made of one rollout.

    ``reward`` is None when the rollout could not be scored; it never counts as 0 then.
    ``outcomes`` names, for each reward function, "ok" or the reason why it has no value.
    """

    key: str
    reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    rubric: str = ""


class ScoredRollout(NamedTuple):
    """A rollout with its score: what evaluation, synthesis and training all receive."""

    rollout: Rollout
    score: Score

    @property
    def key(self) -> str:
        """The identity of this play within its journal."""
        return self.rollout.key

    @property
    def reward(self) -> float | None:
        """The reward; None for a play that failed or could not be scored."""
        return None if self.rollout.error is not None else self.score.reward


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A reference to a dataset on disk: all that travels between stages."""

    uri: str
    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A reference to a folder of weights; the digest is over the weights, not the folder."""

    uri: str
    digest: str


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its standard error and 95 % interval."""

    mean: float
    se: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies wholly on one side of zero."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What an evaluation found: the estimate first, then what it is made of."""

    env: str
    model: str
    reward: Interval
    counts: dict[str, int]
    per_task: dict[str, Interval]
    metrics: dict[str, float]
    usage: Usage
    duration_s: float
    rollouts_uri: str


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One completion, ready for a gradient: token ids as the engine sampled them.

    ``prompt_ids`` and ``completion_ids`` are ids, at least one each; the first ``skip`` ids of the
    completion carry no loss. For a policy gradient, ``logprobs`` (length of the completion) are the
    behaviour policy's, ``version`` is the step of the weights that sampled them, and ``advantage``
    is one number for the whole completion. ``group`` names the samples that share a prompt.
    """

    group: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    reward: float = 0.0
    advantage: float = 0.0
    version: int = 0
    truncated: bool = False
    skip: int = 0

    @property
    def loss_tokens(self) -> int:
        """How many tokens carry loss."""
        return len(self.completion_ids) - self.skip
