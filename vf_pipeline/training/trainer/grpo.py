"""GRPO: groups of completions from the engine, a clipped policy loss, and new weights each step.

One step with max_staleness = 1, time from left to right::

    trainer   take step k ─► loss ─► optimizer ─► write version k + 1 ─► take step k + 1 ─► …
    loader                                                   └─► engine loads it ─► allow k + 2
    worker    plays step k + 1 with version k, and with k + 1 from when that is loaded

Shapes: N tokens that carry loss, sample after sample.
"""

import logging
import statistics
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch

from vf_pipeline.errors import TrainingError
from vf_pipeline.tokens.samples import samples_from_group
from vf_pipeline.training.groups import DataState, Group, StepGroups, choose, is_flat, is_scored
from vf_pipeline.training.spec import TrainSpec
from vf_pipeline.training.trainer.advantages import compute_advantages
from vf_pipeline.training.trainer.batching import MicroBatch
from vf_pipeline.training.trainer.logprobs import check_model, completion_logprobs
from vf_pipeline.training.trainer.losses import LossSums, clip_loss
from vf_pipeline.training.transports.rollouts import RolloutFeed
from vf_pipeline.training.transports.weights import WeightTransport
from vf_pipeline.types import TrainSample

log = logging.getLogger(__name__)

MAX_EMPTY = 5


class GrpoObjective:
    """The policy loss on what the rollout worker played.

    Version v of the weights is the one after v optimizer steps. A step may be played as soon as
    its weights would be at most ``max_staleness`` versions old.

    Args:
        spec: the training.
        feed: the worker's rollouts.
        sync: hands new weights to the engine.
        state: where the data stands.
        served: whether the engine has the first weights already, and the worker was let go.
    """

    def __init__(
        self,
        spec: TrainSpec,
        feed: RolloutFeed,
        sync: WeightTransport,
        state: DataState,
        served: bool = False,
    ) -> None:
        settings = spec.grpo
        self.settings = settings
        self.feed = feed
        self.sync = sync
        self.data = state
        self.steps = settings.steps
        self.lr = settings.lr
        self.max_grad_norm = settings.max_grad_norm
        self.micro_tokens = settings.micro_tokens
        self.save_steps = settings.save_steps
        # One thread, one load at a time: versions reach the engine in their order.
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._loading: Future[None] | None = None
        self._served = served
        self._sampled = 0
        self._metrics: dict[str, float] = {}
        self._entropy = 0.0

    def begin(self, model: Any, step: int) -> None:
        """Have the engine serve the model's weights, and let the worker start."""
        check_model(model)
        # Folders of a process that was killed: its later versions are trained again, and may
        # differ.
        self.sync.clear()
        if not self._served:
            self._push(model, step)
            self._loaded()

    def samples(self, step: int) -> list[TrainSample]:
        """Return the samples of a step's groups.

        Raises:
            TrainingError: rollouts do not come, all fail, carry no token ids, or have taught
                nothing for five steps.
        """
        # The step is allowed only once the last weights are loaded. If that failed, its own error
        # tells more than a wait for rollouts that nobody may play.
        if self.settings.max_staleness == 0:
            self._loaded()
        played = self.feed.take(step)
        chosen, stale = choose(played, self.settings.groups, self.settings.max_staleness)
        # Of the step that is taken, not of what the worker has played ahead: after a kill that is
        # played again.
        self.data.position = played.position
        self.data.tokens += sum(group.completion_tokens for group in played.groups)
        samples = [s for group in chosen for s in assemble(group, self.settings.scale_rewards)]
        self._sampled = sum(len(sample.completion_ids) for sample in samples)
        self._metrics = step_metrics(played, chosen, stale) | {
            "tokens/total": float(self.data.tokens)
        }
        self._entropy = 0.0
        # Last: its message names a metric of this step.
        self._check_signal(played, chosen)
        return samples

    def loss(self, model: Any, batch: MicroBatch) -> LossSums:
        """Return the clipped policy loss of some completions."""
        settings = self.settings
        logprobs_N, entropy_N = completion_logprobs(model, batch, settings.temperature)
        # Token by token, sample after sample, as completion_logprobs gives them: samples of a
        # policy skip nothing, so every completion token has its number here.
        behaviour_N = torch.tensor(
            [value for sample in batch.samples for value in sample.logprobs],
            device=logprobs_N.device,
        )
        advantages_N = torch.tensor(
            [sample.advantage for sample in batch.samples for _ in sample.logprobs],
            device=logprobs_N.device,
        )
        self._entropy += entropy_N.sum().item()
        return clip_loss(
            logprobs_N, behaviour_N, advantages_N, settings.clip_low, settings.clip_high
        )

    def end_step(self, model: Any, step: int) -> None:
        """Hand the new weights to the engine. The last ones nobody samples with."""
        started = time.monotonic()
        # Before the next is written: a load that ends removes all other versions' folders, also
        # one that is being written. It is also where a load that failed ends the training.
        self._loaded()
        if step < self.steps:
            self._push(model, step)
        self._metrics["time/sync"] = time.monotonic() - started

    def metrics(self) -> dict[str, float]:
        """Return the last step's metrics."""
        defaults = {"kl": 0.0, "clip_frac": 0.0} if not self._sampled else {}
        return defaults | self._metrics | {"entropy": self._entropy / max(self._sampled, 1)}

    def state(self) -> dict[str, Any]:
        """Return where the data stands, for the checkpoint."""
        return self.data.to_dict()

    def close(self) -> None:
        """Wait until the engine has loaded what it was last given, or failed to."""
        # Its error is not asked for: training is over, for a reason of its own.
        self._loader.shutdown(wait=True)

    def _push(self, model: Any, version: int) -> None:
        """Write the weights now; the engine loads them while the next step is trained."""
        folder = self.sync.write(model, version)
        self._loading = self._loader.submit(self._load, folder, version)

    def _load(self, folder: Path, version: int) -> None:
        self.sync.load(folder, version)
        # Only now: a group that starts is to be played with these weights, not with older ones.
        self.feed.allow(min(version + self.settings.max_staleness, self.steps - 1), version)

    def _loaded(self) -> None:
        """Wait until the engine serves the weights that were written last.

        Raises:
            ProviderError: it did not take them.
        """
        if self._loading is not None:
            self._loading.result()
            self._loading = None

    def _check_signal(self, played: StepGroups, chosen: list[Group]) -> None:
        if chosen:
            self.data.empty_in_a_row = 0
            return
        self.data.empty_in_a_row += 1
        # All that were tried, not the chosen: an empty step has none of those.
        rewards = [reward for group in played.groups for reward in group.rewards]
        failures = Counter(group.failure for group in played.groups if group.failure)
        cause = failures.most_common(1)[0][0] if failures else ""
        if rewards and all(reward is None for reward in rewards):
            raise TrainingError(
                f"all {len(rewards)} rollouts of step {played.step} failed: {cause}",
                "mend the cause, then run the same command again",
            )
        stale = int(self._metrics["groups/stale"])
        log.warning(
            "step %d is skipped: none of %d groups has a learning signal and is fresh (%d too old)",
            played.step,
            len(played.groups),
            stale,
        )
        if self.data.empty_in_a_row >= MAX_EMPTY:
            mean = self._metrics["reward/mean"]
            if stale:
                raise TrainingError(
                    f"no fresh groups: for {MAX_EMPTY} steps, what was played is older than "
                    f"grpo.max_staleness ({self.settings.max_staleness} versions) allows, or "
                    "teaches nothing",
                    "does the engine serve the weights it is given? see its log",
                )
            raise TrainingError(
                f"no learning signal: for {MAX_EMPTY} steps, all completions of each prompt had "
                f"the same reward (mean {mean:.2f})" + (f"; failures: {cause}" if cause else ""),
                "choose examples that the model solves sometimes, or a larger grpo.group_size",
            )


def assemble(group: Group, scale: Literal["none", "group"]) -> list[TrainSample]:
    """Return a group's rollouts as samples, each with its advantage over the group.

    Raises:
        TrainingError: the rollouts carry no token ids, so they cannot be trained on.
    """
    # None belongs to plays without a reward, which become no samples.
    advantages = [a or 0.0 for a in compute_advantages(group.rewards, scale)]
    name = f"{group.rollouts[0].rollout.example_digest}:{group.position}"
    samples = samples_from_group(name, group.rollouts, advantages, group.version)
    if not samples:
        raise TrainingError(
            "the server's answers carry no usable token ids, so nothing can be trained on",
            "use vf-serve, or another server that answers return_token_ids and logprobs",
        )
    return samples


def step_metrics(played: StepGroups, chosen: list[Group], stale: int) -> dict[str, float]:
    """Return what a step's rollouts look like; means are over all that were tried."""
    groups = played.groups
    count = sum(len(group.rewards) for group in groups)
    # Of all that were tried: the chosen were chosen for their spread, and would tell a mean near
    # the middle whatever the model can do.
    scored = [reward for group in groups for reward in group.rewards if is_scored(reward)]
    flat = sum(is_flat(group.rewards) for group in groups)
    judged = sum(any(is_scored(reward) for reward in group.rewards) for group in groups)
    lags = [played.step - group.version for group in chosen]
    return {
        "reward/mean": statistics.fmean(scored) if scored else 0.0,
        "reward/std": statistics.stdev(scored) if len(scored) > 1 else 0.0,
        "frac_zero_std": flat / max(judged, 1),
        "groups": float(len(chosen)),
        "tried": float(len(groups)),
        "groups/stale": float(stale),
        "skipped": float(not chosen),
        "completion/len_mean": sum(group.completion_tokens for group in groups) / max(count, 1),
        "completion/truncated_frac": sum(group.truncated for group in groups) / max(count, 1),
        "rollout/error_frac": sum(group.errors for group in groups) / max(count, 1),
        "policy_lag": statistics.fmean(lags) if lags else 0.0,
    }
