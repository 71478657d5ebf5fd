"""Stand-ins for the rollout worker's process: what a feed may meet. No torch here either."""

import os
import signal
import sys
import time
from typing import Any

from vf_pipeline.training.groups import Group, StepGroups
from vf_pipeline.training.transports.messages import InFlight, PlayOrder, WorkerFailure
from vf_pipeline.types import Rollout, Score, ScoredRollout, Turn

PROMPTS = ((5, 6, 7, 8), (5, 6, 9), (10, 11, 12, 13, 14))


def group(position: int, version: int, good: bool = True) -> Group:
    """Return two plays of a prompt, with rewards 0 and 1, or both 1."""
    prompt = PROMPTS[position % len(PROMPTS)]
    plays = []
    for k in range(2):
        turn = Turn(prompt, (20 + k, 2), (-6.0, -6.0), "stop", f"w@{version}")
        rollout = Rollout(position, k, "d", "t", "p", "c", "a", "stop", (turn,))
        plays.append(ScoredRollout(rollout, Score(rollout.key, float(k) if good else 1.0)))
    return Group.of(position, plays, version, {"w"})


def plays(order: PlayOrder, commands: Any, results: Any) -> None:
    """Play each step as soon as it is allowed, with the version that was current then."""
    assert "torch" not in sys.modules
    position = order.position
    step = order.step
    while step < order.spec.grpo.steps:
        allow = commands.recv()
        while step <= allow.step:
            count = order.spec.grpo.groups
            results.send(InFlight(step, 4))
            groups = tuple(group(position + k, allow.version) for k in range(count))
            position += count
            results.send(StepGroups(step, groups, position))
            step += 1


def silent(order: PlayOrder, commands: Any, results: Any) -> None:
    """Start a group and never finish it."""
    results.send(InFlight(order.step, 12))
    time.sleep(60)


def dies(order: PlayOrder, commands: Any, results: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def faults(order: PlayOrder, commands: Any, results: Any) -> None:
    results.send(WorkerFailure("unknown environment 'x'", "install it"))
