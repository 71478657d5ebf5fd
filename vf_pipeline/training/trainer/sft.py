"""Supervised fine-tuning on rows of a prompt and a completion: only the completion carries loss."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.configs import SftSettings
from vf_pipeline.errors import StorageError, TrainingError
from vf_pipeline.inference.wire import whole_text
from vf_pipeline.tokens.prefixes import common_prefix_length
from vf_pipeline.tokens.tokenizer import ChatTokenizer
from vf_pipeline.training.trainer.batching import MicroBatch, Row
from vf_pipeline.types import Messages


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row as ids; the completion ends with the end-of-turn token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class SftObjective:
    """Next-token cross entropy on the completions of shuffled rows.

    Args:
        rows: the rows.
        settings: batch size, rate and so on.
        seed: seed of the order, which differs in each epoch.
    """

    def __init__(self, rows: Sequence[EncodedRow], settings: SftSettings, seed: int) -> None:
        self._rows = rows
        self._batch_rows = settings.batch_rows
        self._seed = seed
        self._per_epoch = math.ceil(len(rows) / settings.batch_rows)
        self.steps = count_steps(len(rows), settings)
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

    def rows(self, step: int) -> list[Row]:
        """Return a step's rows behind the prefix that all of their prompts share."""
        epoch, batch = divmod(step, self._per_epoch)
        order = list(range(len(self._rows)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        start = batch * self._batch_rows
        chosen = [self._rows[index] for index in order[start : start + self._batch_rows]]
        made = rows_behind_prefix(chosen)
        self._entropy = 0.0
        self._tokens = sum(row.loss_tokens for row in made)
        return made

    def loss(self, model: Any, batch: MicroBatch) -> Any:
        """Return the cross entropy of some rows."""
        from vf_pipeline.training.trainer.logprobs import suffix_logprobs
        from vf_pipeline.training.trainer.losses import cross_entropy

        logprobs, entropy = suffix_logprobs(model, batch)
        self._entropy += entropy.sum().item()
        return cross_entropy(logprobs)

    def end_step(self, model: Any, step: int) -> None:
        """Do nothing: the rows do not depend on the weights."""

    def metrics(self) -> dict[str, float]:
        """Return the entropy of the model's predictions."""
        return {"entropy": self._entropy / max(self._tokens, 1)}

    def state(self) -> dict[str, Any]:
        """Return nothing: the order follows from the seed and the step."""
        return {}


def rows_behind_prefix(rows: Sequence[EncodedRow]) -> list[Row]:
    """Return rows with what their prompts share as the prefix, the rest as the suffix."""
    shared = max(common_prefix_length([row.prompt_ids for row in rows]), 1)
    return [
        Row(
            prefix=row.prompt_ids[:shared],
            suffix=row.prompt_ids[shared:] + row.completion_ids,
            index=index,
            skip=len(row.prompt_ids) - shared,
        )
        for index, row in enumerate(rows)
    ]


def count_steps(rows: int, settings: SftSettings) -> int:
    """Return the optimizer steps of a number of rows."""
    return settings.epochs * math.ceil(rows / settings.batch_rows)


def count_rows(uri: str) -> int:
    """Return how many rows a file has, from its footer.

    Raises:
        StorageError: the file is missing or damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    path = rows_file(uri)
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}") from None


def rows_file(uri: str) -> Path:
    """Return the parquet file of a reference, which may name its folder."""
    path = storage.local_path(uri)
    return path / "rows.parquet" if path.is_dir() else path


def read_rows(uri: str) -> list[tuple[Messages, str]]:
    """Return prompts and completions of a parquet file.

    Raises:
        StorageError: the file is missing, damaged, or lacks a column.
    """
    import pyarrow as pa
    from pyarrow import parquet

    path = rows_file(uri)
    try:
        table = parquet.read_table(path, columns=["prompt", "completion"])
        prompts = [json.loads(text) for text in table.column("prompt").to_pylist()]
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise StorageError(
            f"cannot read {path}: {error}", "expected are columns prompt (JSON) and completion"
        ) from None
    return list(
        zip(prompts, [str(text) for text in table.column("completion").to_pylist()], strict=True)
    )


def encode_rows(model_dir: str, rows: Sequence[tuple[Messages, str]]) -> list[EncodedRow]:
    """Return rows as ids, rendered by the model's chat template.

    Raises:
        TrainingError: there are no rows.
        ConfigError: the folder holds no tokenizer, or its chat template refuses a row.
    """
    if not rows:
        raise TrainingError("there are no rows to train on", "lower synth.min_reward?")
    tokenizer = ChatTokenizer.load(Path(model_dir))
    return [_encode(tokenizer, prompt, completion) for prompt, completion in rows]


def _encode(tokenizer: ChatTokenizer, prompt: Messages, completion: str) -> EncodedRow:
    completion = whole_text(completion)
    ended = completion + tokenizer.eos_token
    if isinstance(prompt, str):
        before, after = prompt, ended
    else:
        before = tokenizer.text(prompt)
        answer = {"role": "assistant", "content": completion}
        whole = tokenizer.text([*prompt, answer], generate=False)
        after = whole.removeprefix(before) if whole.startswith(before) else ended
        if not after.startswith(completion):
            after = ended
    prompt_ids = tokenizer.encode(before, special=isinstance(prompt, str))
    return EncodedRow(tuple(prompt_ids), tuple(_until_end(tokenizer, tokenizer.encode(after))))


def _until_end(tokenizer: ChatTokenizer, ids: list[int]) -> list[int]:
    """Return ids up to the last special token: templates put line breaks behind the turn's end."""
    special = tokenizer.special_ids
    ends = [place for place, token in enumerate(ids) if token in special]
    return ids[: ends[-1] + 1] if ends else [*ids, *tokenizer.encode(tokenizer.eos_token)]
