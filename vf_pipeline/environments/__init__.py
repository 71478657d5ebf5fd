"""A dataset, an interaction and a rubric: what a model is measured and trained on."""

from vf_pipeline.environments.environment import Environment
from vf_pipeline.environments.hooks import cleanup, stop, teardown
from vf_pipeline.environments.multi_turn import MultiTurnEnv
from vf_pipeline.environments.single_turn import SingleTurnEnv

__all__ = ["Environment", "MultiTurnEnv", "SingleTurnEnv", "cleanup", "stop", "teardown"]
