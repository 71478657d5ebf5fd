"""Supervised fine-tuning on rows of a prompt and a completion: only the completion carries loss.

Shapes: N tokens that carry loss, sample after sample.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vf_pipeline.configs import SftSettings
from vf_pipeline.errors import TrainingError
from vf_pipeline.plain import whole_text
from vf_pipeline.tokens.prefixes import common_prefix_length
from vf_pipeline.tokens.tokenizer import ChatTokenizer
from vf_pipeline.training.trainer.batching import MicroBatch
from vf_pipeline.types import Messages, TrainSample


class SftObjective:
    """Next-token cross entropy on the completions of shuffled rows.

    Args:
        rows: the rows.
        settings: batch size, rate and so on.
        seed: seed of the order, which differs in each epoch.
    """

    def __init__(self, rows: Sequence[TrainSample], settings: SftSettings, seed: int) -> None:
        self._rows = rows
        self._batch_rows = settings.batch_rows
        self._seed = seed
        self._per_epoch = math.ceil(len(rows) / settings.batch_rows)
        self.steps = settings.steps_of(len(rows))
        self.lr = settings.lr
        self.max_grad_norm = settings.max_grad_norm
        self.micro_tokens = settings.micro_tokens
        self.save_steps = settings.save_steps
        self._entropy = 0.0
        self._tokens = 0

    def begin(self, model: Any, step: int) -> None:
        """Check that the model's logits are what this trainer computes."""
        from vf_pipeline.training.trainer.logprobs import check_model

        check_model(model)

    def samples(self, step: int) -> list[TrainSample]:
        """Return a step's rows behind the prefix that all of their prompts share."""
        epoch, batch = divmod(step, self._per_epoch)
        order = list(range(len(self._rows)))
        # A text as seed is hashed the same in every process, unlike hash(); the order of a step
        # follows from seed and step alone, so that a checkpoint has nothing to remember of it.
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        start = batch * self._batch_rows
        chosen = [self._rows[index] for index in order[start : start + self._batch_rows]]
        made = behind_common_prefix(chosen)
        self._entropy = 0.0
        self._tokens = sum(sample.loss_tokens for sample in made)
        return made

    def loss(self, model: Any, batch: MicroBatch) -> Any:
        """Return the cross entropy of some rows."""
        from vf_pipeline.training.trainer.logprobs import completion_logprobs
        from vf_pipeline.training.trainer.losses import cross_entropy

        # At temperature 1, whatever is sampled with later: the likelihood of the data is the aim.
        logprobs_N, entropy_N = completion_logprobs(model, batch)
        self._entropy += entropy_N.sum().item()
        return cross_entropy(logprobs_N)

    def end_step(self, model: Any, step: int) -> None:
        """Do nothing: the rows do not depend on the weights."""

    def metrics(self) -> dict[str, float]:
        """Return the entropy of the model's predictions."""
        return {"entropy": self._entropy / max(self._tokens, 1)}

    def state(self) -> dict[str, Any]:
        """Return nothing: the order follows from the seed and the step."""
        return {}


def behind_common_prefix(rows: Sequence[TrainSample]) -> list[TrainSample]:
    """Return rows with their prompts' common prefix as the prompt, the rest in the completion.

    The rest of a prompt carries no loss; what all rows share is forwarded once.
    """
    # At least one: the first token of a completion is predicted from the last of its prompt. Where
    # rows share nothing, each keeps its own first token, and they are as many prompts.
    shared = max(common_prefix_length([row.prompt_ids for row in rows]), 1)
    return [
        replace(
            row,
            prompt_ids=row.prompt_ids[:shared],
            completion_ids=row.prompt_ids[shared:] + row.completion_ids,
            skip=len(row.prompt_ids) - shared,
        )
        for row in rows
    ]


def encode_rows(model_dir: str, rows: Sequence[tuple[Messages, str]]) -> list[TrainSample]:
    """Return rows as ids, rendered by the model's chat template.

    Raises:
        TrainingError: there are no rows.
        ConfigError: the folder holds no tokenizer, or its chat template refuses a row.
    """
    if not rows:
        raise TrainingError("there are no rows to train on", "lower synth.min_reward?")
    tokenizer = ChatTokenizer.load(Path(model_dir))
    return [_encode(tokenizer, prompt, completion) for prompt, completion in rows]


def _encode(tokenizer: ChatTokenizer, prompt: Messages, completion: str) -> TrainSample:
    completion = whole_text(completion)
    ended = completion + tokenizer.eos_token
    if isinstance(prompt, str):
        before, after = prompt, ended
    else:
        before = tokenizer.text(prompt)
        answer = {"role": "assistant", "content": completion}
        # The template's own end of a turn, where it leaves the answer as it is. Some strip or
        # rewrite what an assistant says; then the end token stands behind the plain text.
        whole = tokenizer.text([*prompt, answer], generate=False)
        after = whole.removeprefix(before) if whole.startswith(before) else ended
        if not after.startswith(completion):
            after = ended
    # Encoded apart, so that no token spans the border: when the model samples, the prompt's ids are
    # fixed before the completion has begun. Chat templates write their special tokens themselves.
    prompt_ids = tokenizer.encode(before, special=isinstance(prompt, str))
    return TrainSample("", tuple(prompt_ids), tuple(_until_end(tokenizer, tokenizer.encode(after))))


def _until_end(tokenizer: ChatTokenizer, ids: list[int]) -> list[int]:
    """Return ids up to the last special token: templates put line breaks behind the turn's end."""
    special = tokenizer.special_ids
    ends = [place for place, token in enumerate(ids) if token in special]
    return ids[: ends[-1] + 1] if ends else [*ids, *tokenizer.encode(tokenizer.eos_token)]
