"""Pure token work: conversations as ids, and completions as training samples."""
