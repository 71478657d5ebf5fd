"""What is kept of a rollout: State → Rollout, one way, and both nouns as JSON and back.

The JSON is plain ASCII, so that lone surrogates and line separators survive; numbers that JSON
does not know (NaN, ±Infinity) travel as their names.
"""

import json
import math
import time
from collections.abc import Mapping
from typing import Any, get_args

from vf_pipeline.errors import StorageError
from vf_pipeline.plain import named_if_unknown, plain
from vf_pipeline.types import (
    Example,
    Failure,
    Messages,
    Rollout,
    Score,
    State,
    StopReason,
    Turn,
    Usage,
)

SCHEMA = 1
_STOP_REASONS = frozenset(get_args(StopReason))


def rollout_from_state(example: Example, index: int, state: State, started: float) -> Rollout:
    """Return what is kept of a finished rollout.

    Args:
        example: what was played.
        index: which of the example's plays this is.
        state: the environment's state after the rollout.
        started: time.monotonic() at its start.
    """
    responses = list(state.get("responses") or [])
    return Rollout(
        example_id=example.example_id,
        index=index,
        example_digest=example.digest,
        task=example.task,
        prompt=jsonable(state.get("prompt", example.prompt)),
        completion=jsonable(state.get("completion") or _empty_completion(example)),
        answer=example.answer,
        stop_reason=_stop_reason(state, responses),
        turns=_turns(responses),
        usage=_usage(responses),
        duration_s=round(time.monotonic() - started, 6),
    )


def failed_rollout(example: Example, index: int, failure: Failure, started: float) -> Rollout:
    """Return what is kept of a rollout that could not be finished; ``started`` as above."""
    return Rollout(
        example_id=example.example_id,
        index=index,
        example_digest=example.digest,
        task=example.task,
        prompt=jsonable(example.prompt),
        completion=_empty_completion(example),
        answer=example.answer,
        stop_reason="error",
        duration_s=round(time.monotonic() - started, 6),
        error=failure,
    )


def _empty_completion(example: Example) -> Messages:
    return "" if isinstance(example.prompt, str) else []


def _stop_reason(state: State, responses: list[Any]) -> StopReason:
    """Return the environment's reason; a cut last answer is never an ordinary stop."""
    cut = bool(responses) and _finish_reason(responses[-1]) == "length"
    reason: Any = state.get("stop_reason")
    if reason not in _STOP_REASONS or (reason == "stop" and cut):
        return "length" if cut else "stop"
    return reason  # type: ignore[no-any-return]


def _finish_reason(response: Any) -> str:
    choices = getattr(response, "choices", None) or [None]
    return str(getattr(choices[0], "finish_reason", None) or "stop")


def _turns(responses: list[Any]) -> tuple[Turn, ...]:
    """Return all turns with their tokens, or none where one of them lacks its tokens."""
    turns = [_turn(response) for response in responses]
    # All or none: with a gap, a conversation would be trained on that was not had.
    return tuple(turn for turn in turns if turn is not None) if all(turns) else ()


def _turn(response: Any) -> Turn | None:
    choices = getattr(response, "choices", None)
    if not choices:
        return None
    choice = choices[0]
    prompt_ids: Any = getattr(response, "prompt_token_ids", None)
    ids: Any = getattr(choice, "token_ids", None)
    logprobs = _token_logprobs(choice)
    if not all(isinstance(part, list | tuple) for part in (prompt_ids, ids, logprobs)):
        return None
    weights = getattr(choice, "weight_version", None) or getattr(response, "weight_version", None)
    return Turn(
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(ids),
        logprobs=tuple(_number(value) for value in logprobs),
        finish_reason=_finish_reason(response),
        weights=str(weights) if isinstance(weights, str | int) else "",
    )


def _token_logprobs(choice: Any) -> Any:
    """Return logprobs of sampled tokens: as the token client puts them, or as chat answers do."""
    own = getattr(choice, "token_logprobs", None)
    if own is not None:
        return own
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    return [token.logprob for token in content] if isinstance(content, list) else None


def _usage(responses: list[Any]) -> Usage:
    used = [getattr(response, "usage", None) for response in responses]
    return Usage(
        prompt_tokens=sum(_count(getattr(usage, "prompt_tokens", 0)) for usage in used),
        completion_tokens=sum(_count(getattr(usage, "completion_tokens", 0)) for usage in used),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


# -- JSON ------------------------------------------------------------------------------------


def rollout_to_dict(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as JSON values, with the schema's number."""
    error = rollout.error
    return {
        "schema": SCHEMA,
        "kind": "rollout",
        "example_id": rollout.example_id,
        "index": rollout.index,
        "example_digest": rollout.example_digest,
        "task": rollout.task,
        "prompt": jsonable(rollout.prompt),
        "completion": jsonable(rollout.completion),
        "answer": jsonable(rollout.answer),
        "stop_reason": rollout.stop_reason,
        "turns": [_turn_to_dict(turn) for turn in rollout.turns],
        "usage": [rollout.usage.prompt_tokens, rollout.usage.completion_tokens],
        "duration_s": rollout.duration_s,
        "error": error and {field: getattr(error, field) for field in Failure.__slots__},
    }


def rollout_from_dict(data: Mapping[str, Any]) -> Rollout:
    """Return a rollout from its JSON values.

    Raises:
        StorageError: another schema, or a field is missing.
    """
    _check_schema(data, "rollout")
    try:
        return Rollout(
            example_id=data["example_id"],
            index=data["index"],
            example_digest=data["example_digest"],
            task=data["task"],
            prompt=data["prompt"],
            completion=data["completion"],
            answer=data["answer"],
            stop_reason=data["stop_reason"],
            turns=tuple(_turn_from_dict(turn) for turn in data["turns"]),
            usage=Usage(*data["usage"]),
            duration_s=data["duration_s"],
            error=Failure(**data["error"]) if data["error"] else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"a rollout record is damaged: {error!r}") from error


def score_to_dict(score: Score) -> dict[str, Any]:
    """Return a score as JSON values, with the schema's number."""
    return {
        "schema": SCHEMA,
        "kind": "score",
        "key": score.key,
        "reward": None if score.reward is None else named_if_unknown(_number(score.reward)),
        "metrics": {
            str(name): named_if_unknown(_number(value)) for name, value in score.metrics.items()
        },
        "outcomes": {str(name): str(text) for name, text in score.outcomes.items()},
        "rubric": score.rubric,
    }


def score_from_dict(data: Mapping[str, Any]) -> Score:
    """Return a score from its JSON values.

    Raises:
        StorageError: another schema, or a field is missing.
    """
    _check_schema(data, "score")
    try:
        return Score(
            key=data["key"],
            reward=None if data["reward"] is None else float(data["reward"]),
            metrics={name: float(value) for name, value in data["metrics"].items()},
            outcomes=dict(data["outcomes"]),
            rubric=data["rubric"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"a score record is damaged: {error!r}") from error


def to_json(values: Any) -> str:
    """Return JSON values as one line of ASCII text."""
    # allow_nan=False: a NaN that slipped through would make a line that other readers refuse.
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _check_schema(data: Mapping[str, Any], kind: str) -> None:
    if data.get("kind") != kind or data.get("schema") != SCHEMA:
        raise StorageError(
            f"a record is of kind {data.get('kind')!r} and schema {data.get('schema')!r},"
            f" not {kind!r} and {SCHEMA}",
            "read it with the version that wrote it, or run again with --fresh",
        )


def _turn_to_dict(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_ids": turn.prompt_ids,
        "completion_ids": turn.completion_ids,
        "logprobs": [named_if_unknown(value) for value in turn.logprobs],
        "finish_reason": turn.finish_reason,
        "weights": turn.weights,
    }


def _turn_from_dict(data: Mapping[str, Any]) -> Turn:
    return Turn(
        prompt_ids=tuple(data["prompt_ids"]),
        completion_ids=tuple(data["completion_ids"]),
        logprobs=tuple(float(value) for value in data["logprobs"]),
        finish_reason=data["finish_reason"],
        weights=data["weights"],
    )


def _number(value: Any) -> float:
    """Return a number of whatever library as a float; what is none becomes NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def jsonable(value: Any) -> Any:
    """Return messages and the like as JSON values that come back as they were; the rest as text."""
    return plain(value, number=named_if_unknown, other=str)
