"""Measure a model on an environment, compare two measurements, and report what came of it."""
