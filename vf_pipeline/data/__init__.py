"""Examples at rest: splits that share nothing, and files."""

from vf_pipeline.data.files import read_examples, write_examples
from vf_pipeline.data.split import split_examples

__all__ = ["read_examples", "split_examples", "write_examples"]
