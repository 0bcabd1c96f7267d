"""Chunks of an attention problem that the reference computes at once, for every layout.

A chunk is a few sequences (padded to one length), kv heads and query rows. `Rows` reads and writes
its rows as [count, head, row, dim]; `mask` is its attention mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting

_MOST_CACHED = {"cpu": 2**18, "cuda": 2**24}
"""Settings with at most so many scores have their pieces cached."""
_PADDING = {"cpu": 2**11, "cuda": 2**19}
"""Scores of padding, per head, that cost less than the operations of another chunk."""


@dataclass(frozen=True)
class Chunk:
    """Sequences [first, last), kv heads [head, head_end), query rows [row, row_end)."""

    first: int
    last: int
    head: int
    head_end: int
    row: int
    row_end: int
    keys: int

    @property
    def sequences(self) -> range:
        """The sequences."""
        return range(self.first, self.last)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.sequences)

    @property
    def rows(self) -> int:
        """Number of query rows per sequence."""
        return self.row_end - self.row


def chunks(setting: Setting, budget: int, device: torch.device) -> Iterator[Chunk]:
    """Split a setting into chunks of at most about `budget` scores.

    Consecutive sequences share a chunk while padding stays cheap; a sequence that exceeds the
    budget is split by heads, then by rows.
    """
    lengths = list(zip(setting.lengths_q, setting.lengths_k, strict=True))
    padding = _PADDING.get(device.type, _PADDING["cpu"])
    first = 0
    while first < len(lengths):
        (rows, keys), last, real = lengths[first], first + 1, 0
        real = rows * keys
        while last < len(lengths):
            more_rows, more_keys = max(rows, lengths[last][0]), max(keys, lengths[last][1])
            padded = (last + 1 - first) * more_rows * more_keys
            more_real = real + lengths[last][0] * lengths[last][1]
            # Beyond 25% padding, a chunk of its own was measured to be faster.
            if padded * setting.heads > budget or padded > 1.25 * more_real + padding:
                break
            rows, keys, real, last = more_rows, more_keys, more_real, last + 1
        if rows and keys:
            count = last - first
            heads = max(1, budget // (count * rows * keys * setting.groups))
            step = rows if heads > 1 else max(1, budget // (count * keys * setting.groups))
            for head in range(0, setting.kv_heads, heads):
                for row in range(0, rows, step):
                    yield Chunk(
                        first, last, head, min(head + heads, setting.kv_heads),
                        row, min(row + step, rows), keys,
                    )  # fmt: skip
        first = last


class Rows:
    """Reads and writes rows [low, high) of some sequences as [count, head, row, dim].

    `width` is high - low, the padded number of rows. Padding rows are 0; the mask hides them.
    """

    def __init__(
        self, setting: Setting, starts: tuple[int, ...], lengths: tuple[int, ...],
        chunk: Chunk, span: tuple[int, int], device: torch.device,
    ) -> None:  # fmt: skip
        self.layout, self.packed = setting.layout, setting.packed
        self.first, self.last = chunk.first, chunk.last
        self.low, self.high = span
        self.width = self.high - self.low
        self.gather: torch.Tensor | None = None
        if setting.packed:
            self.begin = starts[chunk.first] + self.low
            mine = lengths[chunk.first : chunk.last]
            counts = [min(max(length - self.low, 0), self.width) for length in mine]
            if chunk.count == 1:
                self.end = self.begin + counts[0]
            else:
                # Sequences that share a chunk are whole, so low is 0.
                self.end = starts[chunk.last]
                if any(count != self.width for count in counts):
                    self._index(starts, counts, device)

    def _index(self, starts: tuple[int, ...], counts: list[int], device: torch.device) -> None:
        column = torch.arange(self.width)
        first = torch.tensor(starts[self.first : self.last])[:, None]
        real = column < torch.tensor(counts)[:, None]
        self.gather = _copied((first + column).clamp_(max=starts[-1] - 1).flatten(), device)
        self.real = _copied(real.flatten().nonzero().squeeze(1), device)
        self.padding = _copied(~real, device)

    def read(self, tensor: torch.Tensor, heads: slice, dtype: torch.dtype) -> torch.Tensor:
        """The rows of a tensor: [count, head, row, dim] in `dtype`, contiguous."""
        rows = slice(self.low, self.high)
        if self.layout == "bshd":
            block = tensor[self.first : self.last, rows, heads].transpose(1, 2)
        elif self.layout == "bhsd":
            block = tensor[self.first : self.last, heads, rows]
        elif self.gather is not None:
            block = tensor[:, heads].index_select(0, self.gather)
            block = block.view(-1, self.width, *block.shape[1:])
            # A row of another sequence may hold NaN.
            block.masked_fill_(self.padding[..., None, None], 0)
            block = block.transpose(1, 2)
        else:
            flat = tensor[self.begin : self.end, heads]
            block = flat.reshape(-1, self.width, *flat.shape[1:]).transpose(1, 2)
        # Made contiguous before the cast: moves fewer bytes.
        return block.contiguous().to(dtype)

    def write(self, target: torch.Tensor, heads: slice, block: torch.Tensor) -> None:
        """Add [count, head, row, dim] to the rows of `target`."""
        rows = slice(self.low, self.high)
        if self.layout == "bshd":
            target[self.first : self.last, rows, heads].add_(block.transpose(1, 2))
        elif self.layout == "bhsd":
            target[self.first : self.last, heads, rows].add_(block)
        else:
            if self.gather is None:
                flat = block.transpose(1, 2).flatten(0, 1)
            else:
                flat = block.transpose(1, 2).flatten(0, 1).index_select(0, self.real)
            target[self.begin : self.end, heads].add_(flat)

    def write_statistic(self, target: torch.Tensor, heads: slice, block: torch.Tensor) -> None:
        """Write [count, head, row] to `target`, [batch, head, row] or packed [head, row]."""
        if self.packed:
            if self.gather is None:
                flat = block.transpose(0, 1).flatten(1)
            else:
                flat = block.transpose(0, 1).flatten(1).index_select(1, self.real)
            target[heads, self.begin : self.end] = flat
        else:
            target[self.first : self.last, heads, self.low : self.high] = block


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device, without a wait for it: the memory is not pinned."""
    return tensor.to(device, non_blocking=True)


def mask(setting: Setting, chunk: Chunk, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[count, row, key]: 0 where the query sees the key, else -inf.

    Added to the scores: ten times faster on a CPU than `masked_fill`.
    """

    def column(lengths: tuple[int, ...]) -> torch.Tensor:
        mine = torch.tensor(lengths[chunk.first : chunk.last])
        return _copied(mine, device)[:, None, None]

    lengths_q, lengths_k = column(setting.lengths_q), column(setting.lengths_k)
    query = torch.arange(chunk.row, chunk.row_end, device=device)[:, None]
    key = torch.arange(chunk.keys, device=device)
    visible = (query < lengths_q) & (key < lengths_k)
    if setting.causal:
        offset = lengths_k - lengths_q if setting.alignment == "bottom_right" else 0
        behind = query + offset - key
        visible &= behind >= 0
        if setting.window is not None:
            visible &= behind < setting.window
    return torch.where(visible, 0.0, -torch.inf).to(dtype)


@dataclass(frozen=True)
class Piece:
    """A chunk with its rows and its mask, which all precisions share."""

    chunk: Chunk
    query_rows: Rows
    key_rows: Rows
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def mask(self, setting: Setting, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """`mask` in the shape of scores, [count, 1, 1, row, key]."""
        found = self._masks.get(dtype)
        if found is None:
            known = next(iter(self._masks.values()), None)
            if known is None:
                known = mask(setting, self.chunk, dtype, device)[:, None, None]
            found = self._masks[dtype] = known.to(dtype)
        return found


def pieces(setting: Setting, budget: int, device: torch.device) -> Iterable[Piece]:
    """The pieces of a setting; cached if they are small."""
    size = 0
    for rows, keys in zip(setting.lengths_q, setting.lengths_k, strict=True):
        size += rows * keys
    if size * setting.heads <= _MOST_CACHED.get(device.type, _MOST_CACHED["cpu"]):
        return _cached_pieces(setting, budget, device)
    return _pieces(setting, budget, device)


def _pieces(setting: Setting, budget: int, device: torch.device) -> Iterator[Piece]:
    for chunk in chunks(setting, budget, device):
        rows, keys = (chunk.row, chunk.row_end), (0, chunk.keys)
        yield Piece(
            chunk,
            Rows(setting, setting.starts_q, setting.lengths_q, chunk, rows, device),
            Rows(setting, setting.starts_k, setting.lengths_k, chunk, keys, device),
        )


@lru_cache(maxsize=4)
def _cached_pieces(setting: Setting, budget: int, device: torch.device) -> tuple[Piece, ...]:
    return tuple(_pieces(setting, budget, device))
