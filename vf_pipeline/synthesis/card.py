"""The card of a synthetic dataset: what it holds, how it was made, and what fell on the way."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vf_pipeline.synthesis.select import STEPS, Provenance, Selection

_HEAD = """---
configs:
- config_name: default
  data_files: rows.parquet
---
# SFT rows of {env}

{count} rows: a prompt without worked examples, and a completion that model `{model}` gave when it
had {shots} of them in front of the question, and that the rubric of `{env}` {version} accepted.

## What fell at each step

| step | what passes | rows |
| --- | --- | ---: |
"""

_TAIL = """
## Columns

`prompt` (chat messages as JSON text), `completion` (text, as sampled), `task`, `reward`, and where
the row comes from: `example_digest`, `rollout_key` (of the journal), `model` (digest of the
weights), `env`, `env_version`.

## How to read it

```python
import json
import pyarrow.parquet

for row in pyarrow.parquet.read_table("rows.parquet").to_pylist():
    messages = json.loads(row["prompt"]) + [{"role": "assistant", "content": row["completion"]}]
```
"""


def render_card(
    selection: Selection, provenance: Provenance, settings: Mapping[str, Any], shots: int
) -> str:
    """Return the README.md of exported rows: the funnel, tasks, settings and columns.

    Args:
        selection: the rows and their funnel.
        provenance: what made them.
        settings: everything that the rows depend on.
        shots: worked examples of each task while sampling.
    """
    text = _HEAD.format(
        env=_cell(provenance.env),
        version=_cell(provenance.env_version),
        model=_cell(provenance.model),
        count=len(selection.rows),
        shots=shots,
    )
    for step, meaning in STEPS.items():
        text += f"| {step.replace('_', ' ')} | {meaning} | {selection.funnel.get(step, 0)} |\n"
    text += "\n## Tasks\n\n| task | rows |\n| --- | ---: |\n"
    tasks = Counter(row.task for row in selection.rows)
    text += "".join(f"| {_cell(task)} | {tasks[task]} |\n" for task in sorted(tasks))
    dump = json.dumps(settings, indent=2, sort_keys=True, default=str)
    return text + f"\n## Settings\n\n```json\n{dump}\n```\n" + _TAIL


def _cell(text: str) -> str:
    """Return text that stays in its table cell."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").split()) or "(unknown)"
