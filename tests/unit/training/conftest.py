"""A tiny Llama, made once."""

import sys
from pathlib import Path
from typing import Any

import pytest

from vf_pipeline.testing import make_tiny_model
from vf_pipeline.types import ModelRef

# For the stand-ins beside the tests, here and in the processes that the tests spawn.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    """Return a folder with a tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(tiny: ModelRef) -> Any:
    """Return the tiny model, fresh, with weights large enough for logits that differ."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    made = AutoModelForCausalLM.from_pretrained(tiny.uri, dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    return made


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """Return a parquet file of ten rows that share a system prompt."""
    import json

    import pyarrow as pa
    from pyarrow import parquet

    prompts = [
        json.dumps(
            [
                {"role": "system", "content": "Answer with just the result."},
                {"role": "user", "content": f"Which number is larger: {n} or {n + 7}?"},
            ]
        )
        for n in range(10, 20)
    ]
    table = pa.table({"prompt": prompts, "completion": [str(n + 7) for n in range(10, 20)]})
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path)
    return path
