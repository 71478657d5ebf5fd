"""Write SFT rows as parquet, with a card beside them, so that any trainer can load them.

Columns: prompt (chat messages as JSON), completion (text), task, example_digest, rollout_key,
reward, model, env, env_version. Prompts are JSON text because Arrow would merge the shapes of
different messages and fill the gaps with nulls.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from vf_pipeline import storage
from vf_pipeline.synthesis.select import SftRow
from vf_pipeline.types import DatasetRef

if TYPE_CHECKING:
    import pyarrow

ROWS = "rows.parquet"
CARD = "README.md"


def export_rows(rows: Sequence[SftRow], folder: Path, card: str) -> DatasetRef:
    """Return a reference to ``folder/rows.parquet``; the card becomes ``folder/README.md``.

    The digest is over the rows, not the file, so another parquet writer does not change it.

    Raises:
        StorageError: the folder cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    columns = [asdict(row) | {"prompt": _dump(row)} for row in rows]
    table = pyarrow.Table.from_pylist(columns, schema=_schema())
    path = Path(folder) / ROWS
    # The card first: rows are what a reader looks for, and never lie there without it.
    storage.write_text(path.with_name(CARD), card)
    with storage.atomic_path(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    return DatasetRef(str(path), digest_rows(rows), len(rows))


def digest_rows(rows: Sequence[SftRow]) -> str:
    """Return the digest of rows, in their order."""
    return storage.digest_json([asdict(row) for row in rows])


def _dump(row: SftRow) -> str:
    # ASCII keeps lone surrogates, which a model may emit and parquet's UTF-8 cannot hold.
    return json.dumps(row.prompt, ensure_ascii=True)


def _schema() -> "pyarrow.Schema":
    import pyarrow

    kinds = {str: pyarrow.string(), float: pyarrow.float64()}
    return pyarrow.schema(
        [(field.name, kinds.get(field.type, pyarrow.string())) for field in fields(SftRow)]  # type: ignore[arg-type]
    )
