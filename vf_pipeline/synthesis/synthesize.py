"""Sample with worked examples before the question, export the accepted answers without them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_pipeline import storage
from vf_pipeline.configs import InferenceSettings, SynthSettings
from vf_pipeline.environments.rows import insert_shots
from vf_pipeline.errors import ConfigError
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.rollouts.failures import failure_of
from vf_pipeline.rollouts.generate import generate
from vf_pipeline.synthesis.card import render_card
from vf_pipeline.synthesis.export import export_rows
from vf_pipeline.synthesis.select import Provenance, select_for_sft
from vf_pipeline.tracking import Tracker
from vf_pipeline.types import DatasetRef, Example, Message, ScoredRollout, Usage

if TYPE_CHECKING:
    from vf_pipeline.environments.environment import Environment


@dataclass(frozen=True, slots=True)
class SynthResult:
    """What synthesis made: the rows, and how many rollouts passed each step."""

    dataset: DatasetRef
    funnel: dict[str, int]
    usage: Usage
    duration_s: float
    rollouts_uri: str


def synthesize(
    env: "Environment",
    examples: Sequence[Example],
    shots: Mapping[str, list[Message]],
    endpoint: Endpoint,
    *,
    settings: SynthSettings,
    inference: InferenceSettings,
    seed: int,
    folder: Path,
    journal_settings: dict[str, Any],
    tracker: Tracker | None = None,
    client: Any = None,
    fresh: bool = False,
) -> SynthResult:
    """Return a reference to SFT rows made of the accepted rollouts; resumes like evaluate.

    Each example is played with its task's worked examples between the system message and the
    question. A row carries the example's own prompt, so that training teaches to do without them.
    ``folder`` receives ``rollouts.jsonl``, ``rows.parquet``, ``README.md`` and ``result.json``.

    Args:
        env: the environment that plays and scores.
        examples: what is played; none of them may be among the shots.
        shots: by task, the messages of its worked examples.
        endpoint: where the model is served.
        settings: how it is sampled, and what is accepted.
        inference: time limits of requests.
        seed: seed of sampling.
        folder: where rollouts and rows are written.
        journal_settings: what must not change when the folder is resumed; its ``model`` is the
            digest that rows name, the served name where it is absent.
        tracker: receives the funnel and the card.
        client: used in place of one made for the endpoint.
        fresh: play everything again.

    Raises:
        ConfigError: there are no examples, or a prompt has no place for shots.
        ProviderError, EnvironmentFault, RubricError: the first rollouts failed, all of them.
        VfError: too few rollouts were accepted.
    """
    if not examples:
        raise ConfigError("there are no examples to synthesize from", "raise data.synth_examples")
    started_at = time.monotonic()
    # The digests stay those of the plain examples: by them, rows find their prompts again.
    played = [
        replace(example, prompt=insert_shots(example.prompt, shots.get(example.task, [])))
        for example in examples
    ]
    pairs = generate(
        env,
        played,
        endpoint,
        title="synthesize",
        sampling={"temperature": settings.temperature, "max_tokens": settings.max_tokens},
        rollouts_per_example=settings.rollouts_per_example,
        max_concurrent=settings.max_concurrent,
        inference=inference,
        seed=seed,
        journal_path=folder / "rollouts.jsonl",
        journal_settings=journal_settings,
        fresh=fresh,
        client=client,
    )
    made_by = Provenance(
        str(journal_settings.get("model") or endpoint.model), env.env_id, env.version
    )
    prompts = {example.digest: example.prompt for example in examples}
    selection = select_for_sft(pairs, settings, prompts=prompts, provenance=made_by)
    card = render_card(selection, made_by, journal_settings, settings.shots)
    result = SynthResult(
        dataset=export_rows(selection.rows, folder, card),
        funnel=selection.funnel,
        usage=_usage(pairs),
        duration_s=round(time.monotonic() - started_at, 3),
        rollouts_uri=str(folder / "rollouts.jsonl"),
    )
    _record(result, pairs, folder, tracker)
    return result


def _usage(pairs: Sequence[ScoredRollout]) -> Usage:
    return Usage(
        sum(rollout.usage.prompt_tokens for rollout, _ in pairs),
        sum(rollout.usage.completion_tokens for rollout, _ in pairs),
    )


def _record(
    result: SynthResult, pairs: Sequence[ScoredRollout], folder: Path, tracker: Tracker | None
) -> None:
    rewards = [score.reward for pair in pairs if failure_of(pair) is None for score in pair[1:]]
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / len(known) if known else None
    storage.write_json(
        folder / "result.json",
        {
            "rows": result.dataset.rows,
            "digest": result.dataset.digest,
            "funnel": result.funnel,
            "reward_mean": mean,
            "duration_s": result.duration_s,
        },
    )
    if tracker is None:
        return
    tracker.log_metrics(
        {f"funnel/{step}": float(count) for step, count in result.funnel.items()}
        | ({"reward/mean": mean} if mean is not None else {})
        | {
            "tokens/prompt": float(result.usage.prompt_tokens),
            "tokens/completion": float(result.usage.completion_tokens),
            "time/duration_s": result.duration_s,
        }
    )
    tracker.log_artifact(folder / "README.md")
