"""Prefect tasks: one verb a file. Each calls the library and returns small references."""
