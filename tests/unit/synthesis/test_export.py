"""Rows on disk: read back equal, with the columns that trainers expect."""

import json
from pathlib import Path

import pyarrow.parquet

from vf_pipeline.synthesis.export import digest_rows, export_rows
from vf_pipeline.synthesis.select import SftRow

COLUMNS = ["prompt", "completion", "task", "example_digest", "rollout_key", "reward"]
COLUMNS += ["model", "env", "env_version"]


def row(prompt, completion: str = "42", reward: float = 1.0) -> SftRow:
    return SftRow(prompt, completion, "t", "d", "d:0:0", reward, "m", "e", "1")


ROWS = [
    row([{"role": "system", "content": "s"}, {"role": "user", "content": "½ 😀 \ud83d"}]),
    row("text \n\0", completion=" leading, trailing \n", reward=0.25),
    row([{"role": "user", "content": [{"type": "text", "text": "x"}], "name": "n"}]),
]


def test_rows_of_any_shape_come_back_equal(tmp_path: Path) -> None:
    ref = export_rows(ROWS, tmp_path / "new" / "folder", "# card\n")
    table = pyarrow.parquet.read_table(ref.uri)
    assert table.column_names == COLUMNS
    back = [SftRow(**(r | {"prompt": json.loads(r["prompt"])})) for r in table.to_pylist()]
    assert back == ROWS
    assert ref.rows == 3
    assert (tmp_path / "new" / "folder" / "README.md").read_text() == "# card\n"
    assert sorted(p.name for p in Path(ref.uri).parent.iterdir()) == ["README.md", "rows.parquet"]


def test_digest_is_of_the_content_in_its_order(tmp_path: Path) -> None:
    first = export_rows(ROWS, tmp_path / "a", "card")
    again = export_rows(ROWS, tmp_path / "b", "another card")
    assert first.digest == again.digest == digest_rows(ROWS)
    assert digest_rows(ROWS[::-1]) != first.digest


def test_no_rows_still_have_columns(tmp_path: Path) -> None:
    ref = export_rows([], tmp_path, "")
    assert pyarrow.parquet.read_table(ref.uri).column_names == COLUMNS
