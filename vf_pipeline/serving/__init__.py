"""The server's side: the built-in engine, its HTTP routes, and the backends a run may have."""
