"""Key-value slots: one preallocated row a sequence, written at that row's own positions.

Deliberately lacks paging: rows are short, equal and compacted, so that attention reads one
contiguous slice, and a prompt's keys are copied to its samples instead of being shared by block.

Shapes end names: N slots of L places, H heads, K width of a key or value; B rows of one pass, S new
tokens of each, T places that they may look at.
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
"""Per layer: keys and values of one sequence, each [H, tokens, K]."""


class KVCache(Cache):
    """Slots of all layers, each [N, H, L, K]; zeroed, so that no garbage is a NaN.

    Before a forward pass ``aim`` names the rows and positions it writes; attention then sees the
    first ``view`` places of these rows, and the caller's mask hides what is not theirs.
    """

    def __init__(self, shapes: Sequence[LayerShape], dtype: torch.dtype) -> None:
        self.shapes = tuple(shapes)
        self.dtype = dtype
        # Without super().__init__(): it wants transformers' layer objects, which would own the
        # tensors. The empty list stands in for those that inherited methods look for.
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
        # Layer by layer: old and new slots exist side by side for one layer at a time only.
        for layer, shape in enumerate(self.shapes):
            keys_NHLK = torch.zeros(slots, shape.heads, length, shape.key_dim, dtype=self.dtype)
            values_NHLK = torch.zeros(slots, shape.heads, length, shape.value_dim, dtype=self.dtype)
            if layer < len(self._keys):
                keys_NHLK[:keep_rows, :, :places] = self._keys[layer][:keep_rows, :, :places]
                values_NHLK[:keep_rows, :, :places] = self._values[layer][:keep_rows, :, :places]
                self._keys[layer], self._values[layer] = keys_NHLK, values_NHLK
            else:
                self._keys.append(keys_NHLK)
                self._values.append(values_NHLK)
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
        """Write new keys and values [B, H, S, K]; return what these rows may look at."""
        keys_NHLK, values_NHLK = self._keys[layer_idx], self._values[layer_idx]
        # Two index tensors with a slice between them put the indexed axes first: [B, S, H, K].
        keys_NHLK[self._rows_B1, :, self._positions_BS] = key_states.transpose(1, 2)
        values_NHLK[self._rows_B1, :, self._positions_BS] = value_states.transpose(1, 2)
        # A slice and not an index: attention reads the slots themselves, without a copy a step.
        rows = slice(self._first, self._first + key_states.shape[0])
        return keys_NHLK[rows, :, : self._view], values_NHLK[rows, :, : self._view]

    def copy_row(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` places of one row to other rows."""
        if not targets or length == 0:
            return
        rows_B = torch.tensor(targets)
        for slots_NHLK in (*self._keys, *self._values):
            slots_NHLK[rows_B, :, :length] = slots_NHLK[source, :, :length]

    def take(self, row: int, length: int) -> KeyValues:
        """Return a copy of the first ``length`` places of a row."""
        return [
            # Cloned: the row is a slot, and the next sequence writes into it.
            (keys_NHLK[row, :, :length].clone(), values_NHLK[row, :, :length].clone())
            for keys_NHLK, values_NHLK in zip(self._keys, self._values, strict=True)
        ]

    def put(self, rows: Sequence[int], prefix: KeyValues) -> None:
        """Write a prefix's keys and values to the beginning of rows."""
        rows_B = torch.tensor(rows)
        for layer, (keys_HTK, values_HTK) in enumerate(prefix):
            self._keys[layer][rows_B, :, : keys_HTK.shape[1]] = keys_HTK
            self._values[layer][rows_B, :, : values_HTK.shape[1]] = values_HTK

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
    seen_BST = places_T[None, None, :] <= positions_BS[:, :, None]
    # Finite, as in transformers' own masks. A hidden place gets weight 0, which keeps numbers out
    # but not NaN (0 × NaN): hence the zeroed slots.
    low = torch.finfo(torch.float32).min
    return torch.where(seen_BST, 0.0, low)[:, None]
