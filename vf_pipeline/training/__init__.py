"""Training in a child process: SFT and GRPO on ``transformers.Trainer``.

``launch`` and ``spec`` are the parent's side and never import torch. ``child`` is the process that
trains; for GRPO it starts a third one, ``worker``, which plays the environment without torch.
"""
