"""What the journal costs: writing a play down, opening 5 000 of them to resume, reading them.

``python benchmarks/journal.py``: a play of 60 prompt and 30 sampled tokens; a few seconds.
"""

import os
import tempfile
import time
from pathlib import Path

import vf_pipeline as vf
from vf_pipeline.rollouts.journal import Journal

PLAYS = 5000
SYNCED = 300


def play(i: int) -> vf.Rollout:
    """Return the i-th play."""
    prompt = [{"role": "user", "content": "x" * 200}]
    completion = [{"role": "assistant", "content": "y" * 200}]
    turn = vf.Turn(tuple(range(60)), tuple(range(30)), (-0.123456,) * 30, "stop", "0")
    return vf.Rollout(i, 0, f"{i:016x}", "t", prompt, completion, "a", "stop", turns=(turn,))


def main() -> None:
    """Print one line a figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        rollouts = [play(i) for i in range(PLAYS)]
        start = time.perf_counter()
        with Journal.open(path, {}) as journal:
            for rollout in rollouts:
                journal.append(rollout, vf.Score(rollout.key, 1.0))
        print(f"append and close: {(time.perf_counter() - start) / PLAYS * 1e6:.0f} µs a play")
        line = path.read_bytes()[: path.stat().st_size // PLAYS]
        start = time.perf_counter()
        with Journal.open(path, {}):
            print(f"open to resume: {time.perf_counter() - start:.2f} s for {PLAYS} plays")
        start = time.perf_counter()
        vf.read_journal(path)
        print(f"read: {time.perf_counter() - start:.2f} s, {len(line)} bytes a play")
        with (Path(folder) / "synced").open("ab", buffering=0) as file:
            start = time.perf_counter()
            for _ in range(SYNCED):
                file.write(line)
                os.fsync(file.fileno())
        cost = (time.perf_counter() - start) / SYNCED * 1e6
        print(f"for comparison, one fsync a play: {cost:.0f} µs")


if __name__ == "__main__":
    main()
