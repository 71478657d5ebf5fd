"""The process that trains: ``python -m vf_pipeline.training.trainer.process SPEC.json``.

It may be killed at any time; the same command goes on from the last complete checkpoint. The
model's folder appears whole, and result.json is written last. Nothing heavy is imported on top:
the rollout worker starts from this very module.

    spec.json ─► result.json of this training? ──yes──► returned, nothing is trained
                    │no
                    ▼
    step 0, or the last sealed checkpoint; numbers of later steps are forgotten
                    │                      ▲
                    ▼                      │ the same command again
    steps ─► every save_steps: checkpoint, sealed ── killed, or an error ─► failure.json
                    │
                    ▼
    model folder, renamed into place ─► result.json: done ─► checkpoints removed

Whatever is killed leaves either what was there before or all of what comes next.
"""

import errno
import logging
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_pipeline import storage
from vf_pipeline.errors import TrainingError, VfError
from vf_pipeline.training.metrics import MetricsFile
from vf_pipeline.training.spec import (
    FAILURE,
    TrainResult,
    TrainSpec,
    finished_result,
    read_spec,
    write_result,
)
from vf_pipeline.training.trainer import checkpoints
from vf_pipeline.types import ModelRef

if TYPE_CHECKING:
    from vf_pipeline.training.trainer.token_trainer import Objective, Sink

log = logging.getLogger(__name__)

_TOKENIZER_FILES = (
    # A model's save_pretrained writes none of these. They are copied as they are, not loaded and
    # saved again: the ids of a text must not change.
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
)


def main(argv: list[str]) -> int:
    """Run the spec named on the command line; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    spec = read_spec(argv[0])
    try:
        train(spec)
    except VfError as error:
        log.error("%s", error)
        # Before the exit: the parent reads it once this process is gone.
        _report(spec, error.message, error.hint)
        return error.exit_code
    except Exception as error:
        log.exception("training failed")
        _report(spec, f"training failed: {type(error).__name__}: {error}", "see train.log")
        return 1
    return 0


def train(spec: TrainSpec) -> TrainResult:
    """Train, or go on, or return what was trained before.

    Raises:
        VfError: training cannot go on.
    """
    done = finished_result(spec)
    if done is not None:
        # A kill after the result was written has left them.
        checkpoints.remove_all(spec.work())
        return done
    started = time.monotonic()
    storage.remove(spec.work(FAILURE))
    storage.remove(spec.work("result.json"))
    _remove_torn(Path(spec.output_dir))
    spec.work().mkdir(parents=True, exist_ok=True)
    checkpoint = checkpoints.last_complete(spec.work(), spec.digest)
    step = checkpoint.step if checkpoint else 0
    metrics = MetricsFile(spec.work("metrics.jsonl"))
    # Steps after the checkpoint are trained again; their old lines would stand twice.
    metrics.forget_after(step)
    log.info("%s from step %d", spec.kind, step)
    with ExitStack() as stack:
        objective = _objective(spec, checkpoint, stack)
        sinks: list[Sink] = [metrics.write]
        if spec.tracking_uri and spec.tracking_run_id:
            sinks.append(_tracking_sink(spec, stack))
        model = _fit(spec, objective, sinks, checkpoint.folder if checkpoint else None)
    reference = _publish(spec, model)
    took = round(time.monotonic() - started, 3)
    result = TrainResult(reference, objective.steps, metrics.summary(), took, step)
    # Then the checkpoints: without a result, they are all that a killed process could go on from.
    write_result(spec, result)
    checkpoints.remove_all(spec.work())
    return result


def _objective(
    spec: TrainSpec, checkpoint: checkpoints.Checkpoint | None, stack: ExitStack
) -> "Objective":
    if spec.kind == "sft":
        from vf_pipeline.synthesis.rows import read_rows
        from vf_pipeline.training.trainer.sft import SftObjective, encode_rows

        rows = encode_rows(spec.model_dir, read_rows(spec.rows_uri))
        return SftObjective(rows, spec.sft, spec.seed)
    from vf_pipeline.inference.control import EngineControl
    from vf_pipeline.training.groups import DataState
    from vf_pipeline.training.transports.messages import PlayOrder
    from vf_pipeline.training.transports.rollouts import RolloutFeed
    from vf_pipeline.training.transports.weights_disk import DiskWeights
    from vf_pipeline.training.worker.process import run_worker

    # Where the data stood after the last step of the checkpoint.
    state = DataState(**checkpoint.state) if checkpoint else DataState()
    engine = EngineControl(spec.base_url, spec.api_key_var, spec.grpo.stall_timeout_s)
    order = PlayOrder(spec, checkpoint.step if checkpoint else 0, state.position)
    # Started before torch is imported, so that both processes load at the same time.
    feed = RolloutFeed(order, engine.check_alive, run_worker)
    # Undone in reverse: a load under way ends first and tells the worker, then the folders of
    # weights go, and the worker last.
    stack.callback(feed.close)
    sync = DiskWeights(engine, Path(spec.weights_dir), spec.digest)
    stack.callback(sync.clear)
    served = checkpoint is None and engine.weight_version() == spec.model_digest
    if served:
        # The engine has these weights: the first steps are played while this process loads.
        feed.allow(min(spec.grpo.max_staleness, spec.grpo.steps - 1), 0)
    from vf_pipeline.training.trainer.grpo import GrpoObjective

    objective = GrpoObjective(spec, feed, sync, state, served)
    stack.callback(objective.close)
    return objective


def _fit(spec: TrainSpec, objective: "Objective", sinks: "list[Sink]", resume: Path | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    from vf_pipeline.training.trainer.token_trainer import (
        TokenTrainer,
        training_arguments,
        without_dropout,
    )

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # The engine computes on the other cores at the same time.
    torch.set_num_threads(max(spec.threads, 1))
    torch.manual_seed(spec.seed)
    try:
        # fp32: at the rates used here, an update is below the rounding of a bf16 weight.
        model = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot load the model in {spec.model_dir}: {error}") from error
    args = training_arguments(objective, spec.work(), spec.seed)
    trainer = TokenTrainer(without_dropout(model), args, objective, spec.digest, sinks)
    try:
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except Exception as error:
        _raise_if_disk_is_full(error, "write a checkpoint into", spec.work())
        raise
    return trainer.model


def _publish(spec: TrainSpec, model: Any) -> ModelRef:
    """Write the trained model's folder, whole, and return a reference to it."""
    source = Path(spec.model_dir)
    with storage.atomic_path(spec.output_dir) as folder:
        folder.mkdir()
        try:
            model.save_pretrained(folder)
        except Exception as error:
            _raise_if_disk_is_full(error, "write the model into", Path(spec.output_dir))
            raise
        for pattern in _TOKENIZER_FILES:
            for path in source.glob(pattern):
                if path.is_file():
                    (folder / path.name).write_bytes(path.read_bytes())
        # Still under its temporary name: the folder appears together with all that it needs.
        digest = storage.digest_files(sorted(folder.glob("*.safetensors")))
    return ModelRef(spec.output_dir, digest)


def _remove_torn(target: Path) -> None:
    """Remove what a process that was killed while it published has left beside the target."""
    if target.parent.is_dir():
        # The names that storage.atomic_path gives to what is not finished.
        for path in target.parent.glob(f".{target.name}.*.partial"):
            storage.remove(path)


def _raise_if_disk_is_full(error: Exception, doing: str, path: Path) -> None:
    """Raise a StorageError in place of what torch and safetensors make of a full disk."""
    text = str(error)
    if isinstance(error, OSError):
        raise storage.explain_os_error(error, doing, path) from error
    # Their errors carry no errno: Rust's text from safetensors, and from torch's zip writer not
    # even a reason, only its name.
    if "No space left" in text or "os error 28" in text or "PytorchStreamWriter" in text:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise storage.explain_os_error(full, doing, path) from error


def _tracking_sink(spec: TrainSpec, stack: ExitStack) -> "Sink":
    """Return what sends metrics to the run that the parent has opened and will close.

    A step that the run has from before a kill is not sent again. What MLflow misses is spooled;
    what is still there after the flush, the parent sends when it closes the run.
    """
    from vf_pipeline.tracking import MlflowTracker

    tracker = MlflowTracker.attach(spec.tracking_uri, spec.tracking_run_id)
    # Now, for it imports mlflow: the engine's first rollouts take as long as that.
    tracker.flush()
    stack.callback(tracker.flush)
    return lambda step, metrics: tracker.log_step(step, metrics, once_by="loss")


def _report(spec: TrainSpec, message: str, hint: str) -> None:
    try:
        storage.write_json(spec.work(FAILURE), {"message": message, "hint": hint})
    except VfError:
        log.warning("cannot write %s", spec.work(FAILURE))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
