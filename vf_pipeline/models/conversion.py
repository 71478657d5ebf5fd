"""GGUF to safetensors, in a process of its own: its memory goes with it."""

import copy
from pathlib import Path
from typing import Any

from vf_pipeline.errors import StorageError


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer as a folder of fp32 safetensors.

    Takes 1.6 GB of memory for SmolLM2-135M.

    Raises:
        StorageError: it is no GGUF file.
    """
    with gguf.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf:
        raise StorageError(f"{gguf.name} is no GGUF file")
    # Here, not above: a file that is none is told without loading torch.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    # In fp32: what was quantized is unpacked once, and trained in full precision.
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    # What came from GGUF refuses to be saved; the same weights in a model without its trace do not.
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    factory: Any = AutoModelForCausalLM  # from_config has no types
    plain = factory.from_config(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)
