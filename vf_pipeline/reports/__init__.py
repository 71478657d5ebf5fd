"""Results as pictures and pages. Knows results, and is known by no room above it."""
