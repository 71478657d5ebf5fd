"""The built-in engine: continuous batching on torch. Knows nothing of HTTP."""
