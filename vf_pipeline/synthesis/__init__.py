"""Make SFT data: sample from a few-shot prompt, keep what the rubric accepts, export zero-shot."""
