"""The parent's side of a training: start the child, show its progress, bring its result back."""

import errno
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import ProcessError, StorageError, TrainingError
from vf_pipeline.processes import ManagedProcess
from vf_pipeline.progress import Progress, progress_bar
from vf_pipeline.synthesis.rows import count_rows
from vf_pipeline.training.metrics import Follower, Line
from vf_pipeline.training.spec import FAILURE, TrainResult, TrainSpec, finished_result, write_spec

_POLL_S = 0.2
_LAST_WORDS_S = 20.0
# Less than this, in bytes, and the child could not write down why it failed: that is why then.
_ROOM_FOR_WORDS = 65_536


def run_training(spec: TrainSpec, *, run_dir: Path, timeout_s: float) -> TrainResult:
    """Train in a child process and return what it made; go on where an earlier try ended.

    Args:
        spec: the training; ``spec.threads`` is the child's share of the cores.
        run_dir: folder of the run, whose record of processes the child is entered in.
        timeout_s: longest duration, in seconds.

    Raises:
        TrainingError: training failed, the child died, or it took too long.
        StorageError: the rows cannot be read, or the work folder cannot be written.
    """
    done = finished_result(spec)
    if done is not None:
        return done
    storage.remove(spec.work(FAILURE))
    command = [sys.executable, "-m", "vf_pipeline.training.trainer.process", str(write_spec(spec))]
    process = ManagedProcess(
        f"train-{spec.kind}",
        command,
        log_path=spec.work("train.log"),
        env=_environment(spec),
        record=Path(run_dir) / "processes.json",
    )
    with progress_bar(spec.kind.upper(), _steps(spec)) as progress, process:
        result = _follow(spec, process, progress, timeout_s)
        with suppress(ProcessError):
            # It still removes its checkpoints.
            process.wait(_LAST_WORDS_S)
    return result


def _follow(
    spec: TrainSpec, process: ManagedProcess, progress: Progress, timeout_s: float
) -> TrainResult:
    metrics = Follower(spec.work("metrics.jsonl"))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for line in metrics.new_lines():
            progress.advance(line["step"] - progress.done, _note(line))
        result = finished_result(spec)
        if result is not None:
            return result
        try:
            process.check()
        except ProcessError as error:
            # It may have written its result, and ended, since we looked for one above.
            result = finished_result(spec)
            if result is None:
                raise _failure(spec, error) from None
            return result
        time.sleep(_POLL_S)
    raise TrainingError(
        f"{spec.kind} took longer than {timeout_s:.0f} s (at step {progress.done} of "
        f"{progress.total})",
        "run the same command again: it goes on from the last checkpoint",
    )


def _failure(spec: TrainSpec, error: ProcessError) -> TrainingError | StorageError:
    """Return why the child ended: in its own words if it had time, and room, for them."""
    path = spec.work(FAILURE)
    if path.exists():
        words: dict[str, Any] = storage.read_json(path)
        return TrainingError(words["message"], words["hint"])
    if storage.free_bytes(spec.work()) < _ROOM_FOR_WORDS:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return storage.explain_os_error(full, "write", spec.work())
    return TrainingError(
        error.message, error.hint or "run the same command again: it goes on from a checkpoint"
    )


def _environment(spec: TrainSpec) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(max(spec.threads, 1)),
        # Idle OpenMP threads spin by default, on the cores that the engine computes on.
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _steps(spec: TrainSpec) -> int:
    if spec.kind == "grpo":
        return spec.grpo.steps
    return spec.sft.steps_of(count_rows(spec.rows_uri))


def _note(line: Line) -> str:
    if "reward/mean" in line:
        return f"reward {line['reward/mean']:.2f}"
    return f"loss {line['loss']:.3f}"
