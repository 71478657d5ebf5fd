"""Stand-ins for the rollout worker's process: what a feed may meet. No torch here either."""

import os
import signal
import sys
import time
from typing import Any

from vf_pipeline.training.groups import Group, StepGroups
from vf_pipeline.training.worker.process import Fault, Job, Progress
from vf_pipeline.types import TrainSample

PROMPTS = ((5, 6, 7, 8), (5, 6, 9), (10, 11, 12, 13, 14))


def group(position: int, version: int, good: bool = True) -> Group:
    prompt = PROMPTS[position % len(PROMPTS)]
    samples = tuple(
        TrainSample(str(position), prompt, (20 + k, 2), (-6.0, -6.0), float(k), k - 0.5, version)
        for k in range(2)
    )
    rewards = (0.0, 1.0) if good else (1.0, 1.0)
    return Group(position, samples if good else (), rewards, version, completion_tokens=4)


def plays(job: Job, commands: Any, results: Any) -> None:
    """Play each step as soon as it is allowed, with the version that was current then."""
    assert "torch" not in sys.modules
    position = job.position
    step = job.step
    while step < job.spec.grpo.steps:
        allow = commands.recv()
        while step <= allow.step:
            count = job.spec.grpo.groups
            results.send(Progress(step, 4))
            groups = tuple(group(position + k, allow.version) for k in range(count))
            position += count
            results.send(StepGroups(step, groups, position))
            step += 1


def silent(job: Job, commands: Any, results: Any) -> None:
    """Start a group and never finish it."""
    results.send(Progress(job.step, 12))
    time.sleep(60)


def dies(job: Job, commands: Any, results: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def faults(job: Job, commands: Any, results: Any) -> None:
    results.send(Fault("unknown environment 'x'", "install it"))
