"""The environment of a run, as it was when the run was prepared."""

from vf_pipeline import Environment, load_environment
from vf_pipeline.errors import ConfigError
from vf_pipeline.runs import Run


def environment_of(run: Run) -> Environment:
    """Return the run's environment.

    Raises:
        ConfigError: its version or its rubric has changed since the run was prepared: scores
            would not compare.
    """
    settings = run.config.environment
    env = load_environment(settings.id, **settings.args)
    now = {"version": env.version, "rubric": env.rubric.digest()}
    before = run.stage_outputs.get("prepare", {}).get("environment", now)
    if now != before:
        raise ConfigError(
            f"the environment {settings.id} has changed since this run was prepared: "
            f"{before} → {now}",
            "start over with --fresh",
        )
    return env
