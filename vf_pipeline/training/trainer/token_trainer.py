"""The Trainer, with one whole optimizer step as its dataset item.

transformers' Trainer brings the loop, the optimizer, clipping and checkpoints. What a step is made
of comes from an Objective: the dataset only counts steps, so that nothing is fetched ahead, and a
step is cut into micro-batches by tokens with its loss normalised over the whole step.

    get_batch_samples ─► training_step: samples ─► pack ─► loss, backward for each part
                                                              │
    on_save: seal ◄─ log: sinks ◄─ on_step_end: end_step ◄─ clip, optimizer

The loader is one item ahead of the loop, which is why the items are numbers: samples are asked for
in the step itself, when the rollouts of that step may exist.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from vf_pipeline.errors import TrainingError
from vf_pipeline.training.trainer import checkpoints
from vf_pipeline.training.trainer.batching import MicroBatch, pack
from vf_pipeline.training.trainer.losses import LossSums
from vf_pipeline.types import TrainSample

log = logging.getLogger(__name__)

Sink = Callable[[int, Mapping[str, float]], None]
"""Takes a step's number and its metrics."""


class Objective(Protocol):
    """What is trained on, and towards what."""

    steps: int
    lr: float
    max_grad_norm: float
    micro_tokens: int
    save_steps: int

    def begin(self, model: Any, step: int) -> None:
        """Get ready to train from ``step`` on; the model has the weights of that step."""

    def samples(self, step: int) -> list[TrainSample]:
        """Return a step's samples; may wait. None of them means: there is nothing to learn."""

    def loss(self, model: Any, batch: MicroBatch) -> LossSums:
        """Return the loss of some of the last step's samples, summed over their tokens."""

    def end_step(self, model: Any, step: int) -> None:
        """Take note that ``step`` optimizer steps are done, the last one just now."""

    def metrics(self) -> dict[str, float]:
        """Return the last step's metrics."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to remember besides weights and optimizer."""


class TokenTrainer(Trainer):
    """A Trainer of an objective.

    Args:
        model: a causal language model of transformers.
        args: from ``training_arguments``.
        objective: what is trained.
        digest: digest of the training, for its checkpoints.
        sinks: where each step's metrics go.
    """

    objective: Objective
    sinks: list[Sink]

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        objective: Objective,
        digest: str,
        sinks: list[Sink],
    ) -> None:
        self.objective = objective
        self.sinks = sinks
        self.step_metrics: dict[str, float] = {}
        hooks = _Hooks(self, digest)
        super().__init__(
            model=model,
            args=args,
            train_dataset=_Steps(objective.steps),
            data_collator=_as_it_is,
            callbacks=[hooks],
        )
        # With disable_tqdm, the Trainer prints each log as a dict; log() sends them to the sinks
        # instead.
        self.remove_callback(PrinterCallback)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """Return the next step's number; tokens are counted in the step."""
        # None: the Trainer would look for labels to count, and has a number in its hands.
        return [next(epoch_iterator)], None

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of one whole step, after its backward passes."""
        step = int(inputs[0])
        asked = time.monotonic()
        samples = self.objective.samples(step)
        started = time.monotonic()
        model.train()
        # Over the whole step, before it is cut: a mean of the parts' means would weigh a token by
        # the company that it is forwarded in. Without samples nothing is divided: no part, no
        # gradient, and AdamW passes over parameters that have none.
        tokens = sum(sample.loss_tokens for sample in samples)
        total = torch.zeros((), device=self.args.device)
        sums: dict[str, float] = defaultdict(float)
        for batch in pack(samples, self.objective.micro_tokens):
            # self.model, not the argument: an objective calls the decoder and the output layer by
            # themselves, which a wrapper has no names for.
            part = self.objective.loss(self.model, batch)
            loss = part.loss / tokens
            self.accelerator.backward(loss)
            total += loss.detach()
            for name, value in part.sums.items():
                sums[name] += value / tokens
            for name, value in part.peaks.items():
                sums[name] = max(sums[name], value)
        # Before the optimizer steps: one such update would leave no weight intact.
        if not math.isfinite(total.item()):
            raise TrainingError(f"the loss of step {step} is {total.item()}", "lower the lr")
        self.step_metrics = {
            **sums,
            "time/wait": started - asked,
            # A start for now; on_step_end makes a duration of it, so that the optimizer's part is
            # in.
            "time/train": started,
            "tokens/step": float(tokens),
        }
        return total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Send a step's metrics to the sinks; the Trainer's own summary is dropped."""
        # At the end of training the Trainer logs a summary of its own, which is of no step.
        if "loss" not in logs:
            return
        metrics = {
            "loss": logs["loss"],
            "grad_norm": logs.get("grad_norm", 0.0),
            "lr": logs["learning_rate"],
            **self.step_metrics,
            **self.objective.metrics(),
        }
        for sink in self.sinks:
            sink(self.state.global_step, {k: float(f"{v:.8g}") for k, v in metrics.items()})

    def _clip_grad_norm(self, model: Any) -> Tensor:
        # A loss may be finite and its gradient not. Clipping divides by the norm, so that a NaN in
        # one parameter would reach all of them; the optimizer's step comes after this.
        norm: Tensor = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if not math.isfinite(float(norm)):
            step = self.state.global_step
            raise TrainingError(f"the gradient of step {step} is {float(norm)}", "lower the lr")
        return norm


class _Hooks(TrainerCallback):
    """Ties the Trainer's events to the objective and to the checkpoints' seal."""

    def __init__(self, trainer: TokenTrainer, digest: str) -> None:
        self.trainer = trainer
        self.digest = digest

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hand the loaded model over."""
        # Not earlier: the Trainer loads a checkpoint's weights in train(), after its constructor.
        self.trainer.objective.begin(self.trainer.model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close a step. No checkpoint after the last one: the model itself is written next."""
        trainer = self.trainer
        now = time.monotonic()
        trainer.step_metrics["time/train"] = now - trainer.step_metrics["time/train"]
        trainer.objective.end_step(trainer.model, state.global_step)
        # The Trainer's own flow callback asks for a checkpoint at the last step; it runs before
        # those that are added, so this has the last word.
        if state.global_step >= trainer.objective.steps:
            control.should_save = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal the checkpoint that was just written."""
        # The objective's state is that of this step: the next step's samples are not asked for yet.
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        checkpoints.seal(folder, self.digest, state.global_step, self.trainer.objective.state())


def _as_it_is(items: list[Any]) -> Any:
    return items


class _Steps(torch.utils.data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, step: int) -> int:
        if step >= self.count:
            raise IndexError(step)
        return step


def training_arguments(objective: Objective, work_dir: Path, seed: int) -> TrainingArguments:
    """Return the Trainer's arguments: AdamW, constant rate, one item a step, quiet."""
    args = TrainingArguments(
        output_dir=str(work_dir),
        max_steps=objective.steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        train_sampling_strategy="sequential",
        learning_rate=objective.lr,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=objective.max_grad_norm,
        logging_strategy="steps",
        logging_steps=1,
        # The filter would put the average of earlier losses in place of one that is not finite.
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=objective.save_steps,
        # checkpoints.seal() removes older ones, but only once the new one is complete.
        save_total_limit=None,
        # Items are numbers of steps: there are no columns to choose among, and nothing to pin.
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
        log_level="warning",
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
    )
    # More cards than one would wrap the model in DataParallel.
    args._n_gpu = min(args.n_gpu, 1)
    return args


def without_dropout(model: Any) -> Any:
    """Return the model with dropout off: sampled and trained probabilities must be the same."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if getattr(model.config, "attention_dropout", 0.0):
        model.config.attention_dropout = 0.0
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
    return model
