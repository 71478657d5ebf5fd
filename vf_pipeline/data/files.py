"""Examples in parquet: prompts and infos are JSON columns, so that rows of any shape fit."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.environments.rows import content_digest
from vf_pipeline.errors import ConfigError, StorageError
from vf_pipeline.types import DatasetRef, Example

_COLUMNS = ("example_id", "prompt", "answer", "task", "info", "digest")


def write_examples(path: str | Path, examples: Sequence[Example]) -> DatasetRef:
    """Write examples to a parquet file, whole or not at all.

    Returns:
        Its place, its number of rows, and a digest over the examples in their order.

    Raises:
        ConfigError: an example holds what JSON or UTF-8 cannot.
        StorageError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_to_row(example) for example in examples]
    text = pa.string()
    types = [pa.int64(), text, text, text, text, text]
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
    storage.write_bytes(path, buffer.getvalue())
    digest = storage.digest_json([[row["example_id"], row["digest"]] for row in rows])
    return DatasetRef(str(path), digest, len(rows))


def read_examples(path: str | Path) -> list[Example]:
    """Return the examples of a file that ``write_examples`` wrote.

    Raises:
        StorageError: the file is missing, damaged, or holds something else.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = storage.read_bytes(path)
    try:
        rows = pq.read_table(io.BytesIO(data), columns=list(_COLUMNS)).to_pylist()
        return [_to_example(row) for row in rows]
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StorageError(
            f"{path} holds no examples: {reason}", "delete it and run the same command again"
        ) from error


def _to_row(example: Example) -> dict[str, Any]:
    e = example
    try:
        row = {
            "example_id": e.example_id,
            "prompt": json.dumps(e.prompt),
            "answer": e.answer,
            "task": e.task,
            "info": json.dumps(e.info),
            "digest": e.digest or content_digest(e.prompt, e.answer, e.task, e.info),
        }
        # Parquet's text is UTF-8: half a surrogate pair is refused here, where the example has a
        # name.
        (e.answer + e.task).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"example {e.example_id} cannot be written: {error}", "use JSON values and valid text"
        ) from error
    return row


def _to_example(row: dict[str, Any]) -> Example:
    prompt, info = json.loads(row["prompt"]), json.loads(row["info"])
    return Example(
        row["example_id"], prompt, row["answer"], row["task"], info, digest=row["digest"]
    )
