"""Make SFT rows: sample from a few-shot prompt, keep what the rubric accepts."""

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.environment_of_run import environment_of
from vf_pipeline.data.files import read_examples
from vf_pipeline.rollouts.identity import journal_identity
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import Synthesized
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.synthesis.synthesize import synthesize
from vf_pipeline.types import Example, Message


@task(name="synthesize-rows", cache_policy=NO_CACHE)
def synthesize_rows(run: Run, engine: EngineSession) -> Synthesized:
    """Return a reference to the accepted rows, and how many fell at each step."""
    config = run.config
    env = environment_of(run)
    data = run.prepared.data["synth"]
    model = run.model("prepare")
    shots, examples = _set_shots_apart(env, read_examples(Path(data.uri)), config.synth.shots)
    with run.start_tracker("synthesize") as tracker:
        tracker.log_params(config.synth.model_dump() | {"model": model.uri})
        tracker.log_dataset(data, f"{env.env_id}/synth", "source")
        result = synthesize(
            env,
            examples,
            shots,
            engine.endpoint_for(model),
            settings=config.synth,
            inference=config.inference,
            seed=config.seed,
            folder=run.path("synthesize"),
            journal_settings=journal_identity(
                env,
                model=model.digest,
                data=data.digest,
                seed=config.seed,
                synth=config.synth.model_dump(exclude={"max_concurrent"}),
            ),
            tracker=tracker,
        )
        tracker.log_dataset(result.dataset, f"{env.env_id}/sft", "sft")
    return Synthesized(result.dataset, result.funnel)


def _set_shots_apart(
    env: Any, examples: list[Example], count: int
) -> tuple[dict[str, list[Message]], list[Example]]:
    """Return worked examples for each task, and the examples that are none of them."""
    seen: dict[str, int] = {}
    rest = []
    for example in examples:
        seen[example.task] = seen.get(example.task, 0) + 1
        if seen[example.task] > count:
            rest.append(example)
    return {task: env.shots(task, count, examples) for task in seen}, rest
