"""The environment of a run, as it was when the run was prepared."""

from vf_pipeline import Environment, load_environment
from vf_pipeline.errors import ConfigError
from vf_pipeline.runs import Run
from vf_pipeline.runs.outputs import EnvironmentIdentity


def environment_of(run: Run) -> Environment:
    """Return the run's environment.

    Raises:
        ConfigError: its version or its rubric has changed since the run was prepared: scores
            would not compare.
    """
    settings = run.config.environment
    env = load_environment(settings.id, **settings.args)
    now, prepared = identity_of_environment(env), run.prepared_or_none
    if prepared is not None and now != prepared.environment:
        raise ConfigError(
            f"the environment {settings.id} has changed since this run was prepared: "
            f"{prepared.environment} → {now}",
            "start over with --fresh",
        )
    return env


def identity_of_environment(env: Environment) -> EnvironmentIdentity:
    """Return what scores depend on: the environment's version and its rubric."""
    return EnvironmentIdentity(env.version, env.rubric.digest())
