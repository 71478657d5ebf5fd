"""Playing environments: bounded, resumable, each result written down when it is done."""
