"""The OpenAI-compatible HTTP routes over an engine. Never imports torch."""
