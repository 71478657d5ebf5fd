"""Play the base model with worked examples in front, or more tokens: what training must beat."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of
from vf_pipeline import Environment
from vf_pipeline.data.files import read_examples
from vf_pipeline.errors import ConfigError, OverlongPromptError, VfError
from vf_pipeline.evaluation.baselines import Prompting, prompted_baselines, with_shots
from vf_pipeline.evaluation.evaluate import evaluate
from vf_pipeline.rollouts.identity import journal_identity
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import Baseline, Baselines, LeftOut
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.types import DatasetRef, Example

STAGE = "evaluate-prompted"

log = logging.getLogger(__name__)


@task(name="evaluate-baselines", task_run_name=STAGE, cache_policy=NO_CACHE)
def evaluate_baselines(run: Run, engine: EngineSession) -> Baselines:
    """Return each baseline's result with its prompting, and which ones could not be measured.

    One engine serves them all, one after another. A prompting that the environment has no place
    for (too few examples of a task, prompts that are plain text or outgrow the context) is left
    out with its reason, which the verdict repeats; any other failure fails the stage.
    """
    env = environment_of(run)
    # Worked examples come from the synthesis part: a held-out one would give its answer away.
    held_out, source = (read_examples(Path(_part(run, name).uri)) for name in ("eval", "synth"))
    measured: list[Baseline] = []
    left_out: list[LeftOut] = []

    def leave_out(prompting: Prompting, error: VfError) -> None:
        log.warning("the baseline %s is left out: %s", prompting.label, error.message)
        left_out.append(LeftOut(prompting.label, error.message))

    for prompting in prompted_baselines(run.config.eval):
        try:
            examples = with_shots(env, held_out, prompting.shots, source)
        except ConfigError as error:
            leave_out(prompting, error)
            continue
        try:
            measured.append(_evaluate(run, engine, env, prompting, examples))
        except OverlongPromptError as error:
            leave_out(prompting, error)
    return Baselines(tuple(measured), tuple(left_out))


def _evaluate(
    run: Run,
    engine: EngineSession,
    env: Environment,
    prompting: Prompting,
    examples: Sequence[Example],
) -> Baseline:
    config, model, data = run.config, run.model("prepare"), _part(run, "eval")
    place = f"{STAGE}/{prompting.slug}"
    how = config.eval.played_by() | asdict(prompting) | {"shots_from": _part(run, "synth").digest}
    with run.start_tracker(place) as tracker:
        tracker.log_params({"model": model.uri, "model_digest": model.digest, **asdict(prompting)})
        tracker.log_dataset(data, f"{env.env_id}/eval", "eval")
        result = evaluate(
            env,
            examples,
            engine.endpoint_for(model),
            model_name=f"base {prompting.label}",
            settings=config.eval.model_copy(update={"max_tokens": prompting.max_tokens}),
            inference=config.inference,
            seed=config.seed,
            folder=run.path(place),
            journal_settings=journal_identity(
                env, model=model.digest, data=data.digest, seed=config.seed, eval=how
            ),
            tracker=tracker,
        )
    return Baseline(
        prompting.label,
        prompting.shots,
        prompting.max_tokens,
        result,
        str(run.path(place, "rollouts.jsonl")),
    )


def _part(run: Run, name: str) -> DatasetRef:
    return run.prepared.data[name]
