"""SFT rows read back from parquet: for whoever trains on them."""

import json
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.errors import StorageError
from vf_pipeline.types import Messages


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
