"""A finished rollout in, a reward with its reasons out."""

from vf_pipeline.rubrics.group import RubricGroup
from vf_pipeline.rubrics.rubric import Outcome, Rubric

__all__ = ["Outcome", "Rubric", "RubricGroup"]
