"""The OpenAI-compatible face of an engine. Never imports torch."""
