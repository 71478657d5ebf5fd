"""What identifies the rollouts of a journal: one of others is refused when it is resumed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vf_pipeline.environments.environment import Environment


def journal_identity(
    env: "Environment", *, model: str, data: str, seed: int, **how: Any
) -> dict[str, Any]:
    """Return what must not change between the sessions that write one journal.

    Args:
        env: the environment that plays and scores, as ``load_environment`` made it.
        model: what identifies the model: the digest of its weights, or its name at an endpoint.
        data: digest of the examples.
        seed: seed of sampling.
        **how: how the examples are played, by the name of the settings.
    """
    environment = {
        "id": env.env_id,
        "version": env.version,
        "args": env.env_args,
        # Scores of another rubric would be mixed with these, under one mean.
        "rubric": env.rubric.digest(),
    }
    return {"environment": environment, "model": model, "data": data, "seed": seed, **how}
