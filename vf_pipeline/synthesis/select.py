"""Choose the rollouts that become SFT rows, and count what falls at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vf_pipeline.configs import SynthSettings
from vf_pipeline.errors import VfError
from vf_pipeline.types import Messages, Rollout, Score

STEPS: dict[str, str] = {
    "sampled": "rollouts played",
    "scored": "without an error, and scored",
    "not_truncated": "not cut by the token limit",
    "accepted": "reward high enough",
    "single_text": "one answer of plain text",
    "distinct": "not a repetition of an answer to the same example",
    "kept": "among the best of its example",
}
"""The steps of the funnel, in order, and what passes each of them."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """One prompt and the completion to learn for it, and where both come from."""

    prompt: Messages
    completion: str
    task: str
    example_digest: str
    rollout_key: str
    reward: float
    model: str
    env: str
    env_version: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """What made the rollouts: the model's digest, and the environment with its version."""

    model: str = ""
    env: str = ""
    env_version: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that were kept, and how many rollouts passed each step."""

    rows: list[SftRow]
    funnel: dict[str, int] = field(default_factory=dict)


def select_for_sft(
    pairs: Sequence[tuple[Rollout, Score]],
    settings: SynthSettings,
    *,
    prompts: Mapping[str, Messages] | None = None,
    provenance: Provenance | None = None,
) -> Selection:
    """Return the rows made of the accepted rollouts; the order of the pairs changes nothing.

    Args:
        pairs: rollouts with their scores.
        settings: the least reward, and how many rows of one example are kept: those of the highest
            reward, then those played first.
        prompts: by example digest, the prompt that a row gets; the one played where it is absent.
        provenance: what made the rollouts.

    Raises:
        VfError: fewer rows than ``settings.min_rows`` are left.
    """
    made_by = provenance or Provenance()
    ordered = sorted(pairs, key=lambda pair: (pair[0].example_id, pair[0].index, pair[0].key))
    funnel = dict.fromkeys(STEPS, 0)
    candidates: dict[str, list[tuple[Rollout, float, str]]] = {}
    for rollout, score in ordered:
        reached = _steps_passed(rollout, score, settings)
        for step in list(STEPS)[:reached]:
            funnel[step] += 1
        # Five steps are told of a rollout by itself; whether it is distinct depends on the others.
        if reached < 5 or score.reward is None:
            continue
        text = completion_text(rollout) or ""
        group = candidates.setdefault(rollout.example_digest, [])
        if text.strip() not in {other.strip() for _, _, other in group}:
            group.append((rollout, score.reward, text))
    rows = []
    for digest, group in candidates.items():
        funnel["distinct"] += len(group)
        # The sort is stable: plays of one reward stay in the order they were played.
        best = sorted(group, key=lambda item: -item[1])[: settings.keep_per_example]
        for rollout, reward, text in best:
            prompt = (prompts or {}).get(digest, rollout.prompt)
            rows.append(_row(rollout, reward, text, prompt, made_by))
    funnel["kept"] = len(rows)
    if len(rows) < settings.min_rows:
        raise _too_few(funnel, settings)
    return Selection(rows, funnel)


def completion_text(rollout: Rollout) -> str | None:
    """Return the text of a rollout's only assistant message; None where there is no such text."""
    completion = rollout.completion
    if not isinstance(completion, str):
        if len(completion) != 1 or completion[0].get("tool_calls"):
            return None
        completion = completion[0].get("content") or ""
    usable = isinstance(completion, str) and completion.strip() and _is_unicode(completion)
    return completion if usable else None


def _is_unicode(text: str) -> bool:
    """Return whether text can be written as UTF-8; half of a surrogate pair cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _steps_passed(rollout: Rollout, score: Score, settings: SynthSettings) -> int:
    """Return how many of the first five steps a rollout passes, one after the other."""
    checks = (
        rollout.error is None and score.reward is not None,
        not rollout.truncated,
        score.reward is not None and score.reward >= settings.min_reward,
        completion_text(rollout) is not None,
    )
    return 1 + next((at for at, passed in enumerate(checks) if not passed), len(checks))


def _row(
    rollout: Rollout, reward: float, text: str, prompt: Messages, made_by: Provenance
) -> SftRow:
    return SftRow(
        prompt=prompt,
        completion=text,
        task=rollout.task,
        example_digest=rollout.example_digest,
        rollout_key=rollout.key,
        reward=reward,
        model=made_by.model,
        env=made_by.env,
        env_version=made_by.env_version,
    )


def _too_few(funnel: Mapping[str, int], settings: SynthSettings) -> VfError:
    steps = list(STEPS)
    # The step at which most fell, with what has to change about it.
    remedies = {
        "scored": "look at the errors in the journal",
        "not_truncated": "raise synth.max_tokens",
        "accepted": "raise synth.shots or synth.rollouts_per_example, or lower synth.min_reward",
        "single_text": "only single answers of plain text can be exported",
        "distinct": "raise synth.temperature",
        "kept": "raise data.synth_examples or synth.keep_per_example",
    }
    fell = {step: funnel[before] - funnel[step] for before, step in pairwise(steps)}
    worst = max(remedies, key=lambda step: fell[step])
    passed = ", ".join(f"{funnel[step]} {step.replace('_', ' ')}" for step in steps[1:])
    remedy = remedies[worst] if fell[worst] else "raise data.synth_examples"
    return VfError(
        f"only {funnel['kept']} of {funnel['sampled']} samples were accepted, training needs "
        f"{settings.min_rows} ({passed})",
        hint=f"{remedy}, or lower synth.min_rows",
    )
