"""The rollout worker: plays environments for the trainer, in a process without torch."""
