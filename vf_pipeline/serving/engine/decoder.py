"""A causal language model over key-value slots: prefill some rows, decode all rows by one token.

Any full-attention decoder of transformers works, through its own layers. What would not is refused
by name when it is loaded, and a self-check compares the slots with the plain forward pass.

Shapes end names: B rows of one pass, S new tokens of each, D width of the model, V vocabulary.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.kv_cache import KeyValues, KVCache, LayerShape, visibility_mask

# Together they bound a prefill pass to 2048 padded tokens: its activations, and a mask of 8 KB for
# each place of the view. A long prompt alone is cut into columns of 512.
_PREFILL_TOKENS = 2048
_PREFILL_COLUMNS = 512
_PROBE_TOKENS = 8


class Decoder:
    """A loaded model and its slots. All methods must be called from one thread.

    Args:
        model_dir: folder with config.json and safetensors.
        max_context: most tokens of prompt and completion together.

    Raises:
        ConfigError: the folder holds no model, or one this engine cannot serve.
    """

    def __init__(self, model_dir: str | Path, max_context: int) -> None:
        self.config = _load_config(model_dir)
        refuse_unsupported(self.config, max_context)
        self.model = _load_model(model_dir)
        # Without its head, so that a prefill pays for logits at each prompt's last token alone:
        # they are the largest tensor of a small model.
        self._base: Any = self.model.base_model
        self._head: Any = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        names = inspect.signature(self._base.forward).parameters
        # Renamed in transformers 5.2x; the old name still works there but warns.
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        with torch.inference_mode():
            shapes, expected_V = self._probe()
            self.cache = KVCache(shapes, torch.float32)
            self._self_check(expected_V)

    @property
    def vocab_size(self) -> int:
        """Tokens that have logits."""
        return int(self._head.weight.shape[0])

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn, by the model's own configuration."""
        ids: set[int] = set()
        for config in (self.config, self.model.generation_config):
            value = getattr(config, "eos_token_id", None)
            if value is not None:
                ids |= set(value) if isinstance(value, list | tuple) else {value}
        return frozenset(ids)

    def prefill(
        self, prompts: Sequence[Sequence[int]], first: int, starts: Sequence[int]
    ) -> torch.Tensor:
        """Write prompts to the rows from ``first`` on; return the logits after each, [B, V].

        Row i already holds the first ``starts[i]`` tokens of its prompt.
        """
        out: list[torch.Tensor] = []
        at = 0
        while at < len(prompts):
            count = _rows_that_fit([len(p) - s for p, s in zip(prompts, starts, strict=True)], at)
            rows = slice(at, at + count)
            out.append(self._prefill(prompts[rows], first + at, starts[rows]))
            at += count
        hidden_BD = torch.cat(out)
        logits_BV: torch.Tensor = self._head(hidden_BD)
        return logits_BV

    def prefix(
        self, ids: Sequence[int], scratch: int, start: int, before: KeyValues | None
    ) -> KeyValues:
        """Return the keys and values of a prefix, computed in row ``scratch``.

        ``before`` holds those of its first ``start`` tokens.
        """
        if before is not None:
            self.cache.put([scratch], before)
        self._prefill([ids], scratch, [start])
        return self.cache.take(scratch, len(ids))

    def step(self, tokens: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Append a token to each of the first rows; return the next logits [B, V].

        ``lengths[i]`` is how many tokens row i holds already.
        """
        positions_B1 = torch.tensor(lengths)[:, None]
        hidden_BSD = self._forward(torch.tensor(tokens)[:, None], positions_B1, 0, max(lengths) + 1)
        logits_BV: torch.Tensor = self._head(hidden_BSD[:, 0])
        return logits_BV

    def _prefill(
        self, prompts: Sequence[Sequence[int]], first: int, starts: Sequence[int]
    ) -> torch.Tensor:
        """Return the last tokens' hidden states [B, D]; long prompts go in pieces of columns."""
        widths = [len(p) - s for p, s in zip(prompts, starts, strict=True)]
        # Rows end in different pieces: each leaves its last hidden state when its own prompt ends.
        last_D: list[torch.Tensor | None] = [None] * len(prompts)
        for left in range(0, max(widths), _PREFILL_COLUMNS):
            right = min(left + _PREFILL_COLUMNS, max(widths))
            ids_BS, positions_BS = self._columns(prompts, starts, left, right)
            # Padding may stand beyond the view, and then sees all of it. What it computes is never
            # read, and places of the view are all finite, so no NaN can come of it.
            view = max(s + min(w, right) for s, w in zip(starts, widths, strict=True))
            hidden_BSD = self._forward(ids_BS, positions_BS, first, view)
            for row, width in enumerate(widths):
                if left < width <= right:
                    last_D[row] = hidden_BSD[row, width - 1 - left]
        return torch.stack([hidden_D for hidden_D in last_D if hidden_D is not None])

    def _columns(
        self, prompts: Sequence[Sequence[int]], starts: Sequence[int], left: int, right: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and positions [B, right - left], padded at the right.

        Padding is written behind a prompt, where decoding overwrites it before it is ever seen;
        no prompt reaches the last place of a row, so that place takes what runs over.
        """
        ids = [list(p[s + left : s + right]) for p, s in zip(prompts, starts, strict=True)]
        padded = [row + [0] * (right - left - len(row)) for row in ids]
        positions_BS = torch.tensor(starts)[:, None] + torch.arange(left, right)
        # Several writes to the last place are in no fixed order; it does not matter, for it is
        # never read: a sequence ends before its last token would be written there.
        return torch.tensor(padded), positions_BS.clamp(max=self.cache.length - 1)

    def _forward(
        self, ids_BS: torch.Tensor, positions_BS: torch.Tensor, first: int, view: int
    ) -> torch.Tensor:
        self.cache.aim(first, positions_BS, view)
        out = self._base(
            input_ids=ids_BS,
            position_ids=positions_BS,
            # Four-dimensional: transformers' create_causal_mask passes such a mask on as it is.
            attention_mask=visibility_mask(positions_BS, view),
            use_cache=True,
            **{self._cache_name: self.cache},
        )
        hidden_BSD: torch.Tensor = out.last_hidden_state
        return hidden_BSD

    def _probe(self) -> tuple[list[LayerShape], torch.Tensor]:
        """Return the layers' key-value shapes and the plain logits [V] after the probe tokens."""
        # Asked of the layers and not of the config: what they write is the truth, also where keys
        # and values are of different width, or some layers have fewer heads.
        cache = DynamicCache(config=self.config)
        ids_BS = torch.tensor([self._probe_ids()])
        logits_BSV = self.model(
            input_ids=ids_BS, use_cache=True, **{self._cache_name: cache}
        ).logits
        shapes = []
        for layer in cache.layers:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            if keys is None or values is None or keys.shape[2] != _PROBE_TOKENS:
                raise _unsupported(self.config, "has layers without a key-value cache")
            shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
        return shapes, logits_BSV[0, -1].float()

    def _probe_ids(self) -> list[int]:
        # All different, so that a token at the wrong place changes the logits.
        return [(7 * i + 1) % self.config.vocab_size for i in range(_PROBE_TOKENS)]

    def _self_check(self, expected_V: torch.Tensor) -> None:
        """Compare a prefill and two decoded tokens with the plain forward pass."""
        ids = self._probe_ids()
        self.cache.resize(2, _PROBE_TOKENS + 1, 0)
        # Widths 3 and 6 share one pass, padding included (see _rows_that_fit); then the copy and
        # two steps write to slots, in both rows.
        self.prefill([ids[:3], ids[:-2]], 0, [0, 0])
        self.cache.copy_row(1, [0], len(ids) - 2)
        for place in (len(ids) - 2, len(ids) - 1):
            logits_BV = self.step([ids[place]] * 2, [place] * 2)
        scale = expected_V.abs().max().clamp(min=1.0)
        worst = (logits_BV.float() - expected_V).abs().max()
        self.cache.resize(1, 1, 0)
        # Other batch shapes move fp32 logits by about 2e-5, a wrong mask or position by far more.
        # Written with "not", so that NaN is refused as well.
        if not worst <= 1e-3 * scale:
            raise _unsupported(self.config, f"gives other logits with slots (by {worst:.2g})")


def refuse_unsupported(config: PreTrainedConfig, max_context: int) -> None:
    """Raise if a model cannot be served by slots: only full-attention decoders can.

    Raises:
        ConfigError: names the model type and what it has.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise _unsupported(config, "is an encoder-decoder")
    # A window no shorter than the context hides nothing: such layers are full attention here. Some
    # configs (Qwen2) name a window and switch it off in use_sliding_window.
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and window < max_context:
        raise _unsupported(config, f"has a sliding window of {window} tokens")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds - {"sliding_attention"} or (kinds and not window):
        raise _unsupported(config, f"has layers of type {', '.join(sorted(kinds))}")
    # The first is not in sdpa; the second, in transformers, is applied behind the head, where _base
    # and _head do not pass. Other changes behind it (scales) fail the self-check.
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None):
            raise _unsupported(config, f"caps its logits ({name})")
    if not getattr(config, "num_attention_heads", None):
        raise _unsupported(config, "has no attention heads")
    places = getattr(config, "max_position_embeddings", None)
    if places and places < max_context:
        raise ConfigError(
            f"max_context {max_context} exceeds the model's {places} positions",
            f"set inference.max_context (or --max-context) to at most {places}",
        )


def _unsupported(config: PreTrainedConfig, why: str) -> ConfigError:
    return ConfigError(
        f"the built-in engine cannot serve a {config.model_type!r} model: it {why}",
        'serve it with another server and set inference.engine = "endpoint"',
    )


def _load_config(model_dir: str | Path) -> PreTrainedConfig:
    if not (Path(model_dir) / "config.json").is_file():
        raise ConfigError(f"no model in {model_dir}: config.json is missing", "give a model folder")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(str(model_dir), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot read the model in {model_dir}: {error}") from error
    return config


def _load_model(model_dir: str | Path) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(model_dir), dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"cannot load the model in {model_dir}: {error}") from error
    model.train(False).requires_grad_(False)
    # Tensors may still be windows into the file: they must not change when somebody rewrites it.
    for tensor in model.parameters():
        tensor.data = tensor.data.clone()
    return model


def _rows_that_fit(widths: Sequence[int], at: int) -> int:
    """Return how many rows from ``at`` on are padded and forwarded together.

    Rows come sorted by width; a row joins while the batch stays within the token budget and less
    than a third of it is padding.
    """
    count, total = 1, widths[at]
    widest = widths[at]
    for width in widths[at + 1 :]:
        widest, total = max(widest, width), total + width
        padded = widest * (count + 1)
        if padded > _PREFILL_TOKENS or total * 3 < padded * 2:
            break
        count += 1
    return count
