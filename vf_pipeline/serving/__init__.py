"""The server's side: the built-in engine, its OpenAI-compatible face, processes and their ends."""
