"""Prefect flows: the signature is the form in the UI, the body tells the story."""
