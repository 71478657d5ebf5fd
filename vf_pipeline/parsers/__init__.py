"""Text in, fields out: what a model wrote becomes the answer that a rubric compares."""

from vf_pipeline.parsers.maybe_think import MaybeThinkParser
from vf_pipeline.parsers.parser import Parser
from vf_pipeline.parsers.think import ThinkParser
from vf_pipeline.parsers.xml import XMLParser

__all__ = ["MaybeThinkParser", "Parser", "ThinkParser", "XMLParser"]
