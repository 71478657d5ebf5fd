"""Key-value slots: one preallocated row a sequence, written at that row's own positions.

Deliberately lacks paging: rows are short, equal and compacted, so that attention reads one
contiguous slice, and a prompt's keys are copied to its samples instead of being shared by block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and widths of one layer's keys and values."""

    heads: int
    key_dim: int
    value_dim: int


KeyValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer: keys and values of one sequence, each [heads, tokens, dim]."""


class KVCache(Cache):
    """Slots of all layers, each [slots, heads, length, dim]; zeroed, so that no garbage is a NaN.

    Before a forward pass ``aim`` names the rows and positions it writes; attention then sees the
    first ``view`` places of these rows, and the caller's mask hides what is not theirs.
    """

    def __init__(self, shapes: Sequence[LayerShape], dtype: torch.dtype) -> None:
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.slots = 0
        self.length = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._first = 0
        self._view = 0
        self._positions_BS = torch.zeros(0, 0, dtype=torch.long)
        self._rows_B1 = torch.zeros(0, 1, dtype=torch.long)
        self.layers = []

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one place of one slot takes, over all layers."""
        item = torch.empty(0, dtype=self.dtype).element_size()
        return sum(s.heads * (s.key_dim + s.value_dim) for s in self.shapes) * item

    def resize(self, slots: int, length: int, keep_rows: int) -> None:
        """Allocate other slots; the first ``keep_rows`` rows keep their content."""
        places = min(length, self.length)
        for layer, shape in enumerate(self.shapes):
            keys = torch.zeros(slots, shape.heads, length, shape.key_dim, dtype=self.dtype)
            values = torch.zeros(slots, shape.heads, length, shape.value_dim, dtype=self.dtype)
            if layer < len(self._keys):
                keys[:keep_rows, :, :places] = self._keys[layer][:keep_rows, :, :places]
                values[:keep_rows, :, :places] = self._values[layer][:keep_rows, :, :places]
                self._keys[layer], self._values[layer] = keys, values
            else:
                self._keys.append(keys)
                self._values.append(values)
        self.slots, self.length = slots, length

    def aim(self, first: int, positions_BS: torch.Tensor, view: int) -> None:
        """Set where the next forward pass writes: rows from ``first`` on, at these positions."""
        self._first = first
        self._positions_BS = positions_BS
        self._rows_B1 = torch.arange(first, first + positions_BS.shape[0])[:, None]
        self._view = view

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values [B, heads, S, dim]; return what these rows may look at."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows_B1, :, self._positions_BS] = key_states.transpose(1, 2)
        values[self._rows_B1, :, self._positions_BS] = value_states.transpose(1, 2)
        rows = slice(self._first, self._first + key_states.shape[0])
        return keys[rows, :, : self._view], values[rows, :, : self._view]

    def copy_row(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` places of one row to other rows."""
        if not targets or length == 0:
            return
        rows = torch.tensor(targets)
        for tensor in (*self._keys, *self._values):
            tensor[rows, :, :length] = tensor[source, :, :length]

    def take(self, row: int, length: int) -> KeyValues:
        """Return a copy of the first ``length`` places of a row."""
        return [
            (keys[row, :, :length].clone(), values[row, :, :length].clone())
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def put(self, rows: Sequence[int], prefix: KeyValues) -> None:
        """Write a prefix's keys and values to the beginning of rows."""
        index = torch.tensor(rows)
        for layer, (keys, values) in enumerate(prefix):
            self._keys[layer][index, :, : keys.shape[1]] = keys
            self._values[layer][index, :, : values.shape[1]] = values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length; models ask only where positions are not given, and ours are."""
        return self._view

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Return the key length and offset of a mask."""
        return self._view, 0

    @property
    def is_compileable(self) -> bool:
        """Whether torch.compile may trace this cache: it changes shape all the time."""
        return False


def visibility_mask(positions_BS: torch.Tensor, view: int) -> torch.Tensor:
    """Return the additive mask [B, 1, S, view]: a token sees the places up to its own."""
    places_T = torch.arange(view)
    seen = places_T[None, None, :] <= positions_BS[:, :, None]
    low = torch.finfo(torch.float32).min
    return torch.where(seen, 0.0, low)[:, None]
