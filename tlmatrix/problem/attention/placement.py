"""Placement of packed rows in the tensors of an entry: padded ones, and KV caches.

Reference and relations compute with packed sequences; only the inputs and results of an entry
differ. Places without a row hold huge values or, with odd seeds, NaN: an entry that reads any of
these gives wrong results.

Padded tensors are [batch, seqlen, ...], with masks that say which positions hold tokens. The axis
`padding` places the padding after the tokens (`right`), before them (`left`), or anywhere
(`holes`). Results there must be 0, and lse -inf.

KV caches have keys and values in a row per sequence (`cache`), or in pages of a pool (`paged`):

=======  =====================================================  ==============================
layout   tensors                                                key j of sequence b is
=======  =====================================================  ==============================
cache    k_cache, v_cache [batch, max_seqlen_k, kv_heads, dim]  row (b, j)
paged    k_pages, v_pages [pages, page_size, kv_heads, dim],    row j % page_size of page
         block_table [batch, max_pages] int32                   block_table[b, j // page_size]
=======  =====================================================  ==============================

Both have seqlens_k [batch] int32, and one query per sequence: q and out are [batch, heads, dim],
lse is [batch, heads]. Pages are shuffled, and a few are spare. Entries of the block table past the
last page of a sequence lie outside the pool. So do those of pages before the window, which a server
may have freed, unless the axis `freed_pages` is false.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import generator, poison_scale, replacement_values
from tlmatrix.problem.model import Dim, UnusedRows
from tlmatrix.problem.paging import Paging
from tlmatrix.problem.tensors import LazyMapping

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.reference import Operands
    from tlmatrix.problem.model import Tensors

_OF_KEYS = frozenset({"k", "v", "dk", "dv"})
_UNPADDED = frozenset({"sink", "dsink"})
_PER_ROW = frozenset({"lse", "delta"})
_MOST_SPARE = 3
"""Largest number of positions of a padded tensor beyond its longest sequence."""


@dataclass(frozen=True)
class Padding:
    """The positions of the tokens of a setting; `pattern` is a value of the axis `padding`."""

    setting: Setting
    pattern: str
    seed: int
    device: torch.device

    @cached_property
    def masks(self) -> dict[str, torch.Tensor]:
        """`mask_q` [batch, seqlen_q] and `mask_k` [batch, seqlen_k], bool, true at tokens.

        The two are equal if the setting has a shared mask.
        """
        sides = {"q": self.setting.lengths_q, "k": self.setting.lengths_k}
        return {
            f"mask_{side}": self._mask("q" if self.setting.shared_mask else side, lengths).to(
                self.device
            )
            for side, lengths in sides.items()
        }

    def _mask(self, side: str, lengths: Sequence[int]) -> torch.Tensor:
        pick = random.Random(f"{self.seed} {side}")  # noqa: S311 - test data, not secrets
        spare = pick.randrange(_MOST_SPARE + 1)
        size = max(lengths, default=0) + (0 if side == self.setting.unmasked else spare)
        mask = torch.zeros(len(lengths), size, dtype=torch.bool)
        for row, length in zip(mask, lengths, strict=True):
            if self.pattern == "holes":
                row[pick.sample(range(size), length)] = True
            elif self.pattern == "left":
                row[size - length :] = True
            else:
                row[:length] = True
        return mask

    def padded(self, name: str, tensor: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        """A packed tensor, or lse [heads, total], as a padded one with `fill` in the padding."""
        if name in _UNPADDED:
            return tensor
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        rows = tensor.T if name in _PER_ROW else tensor
        spread = rows.new_full((*mask.shape, *rows.shape[1:]), fill)
        spread[mask] = rows
        return spread.transpose(1, 2).contiguous() if name in _PER_ROW else spread

    def results(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Packed results as padded ones: 0 in the padding, lse -inf."""
        return {
            name: self.padded(name, tensor, -torch.inf if name == "lse" else 0.0)
            for name, tensor in tensors.items()
        }

    def operands(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Packed operands as padded ones, with poison in the padding."""
        fill = torch.nan if self.seed % 2 else poison_scale(self.setting.dtype)
        return {name: self.padded(name, tensor, fill) for name, tensor in tensors.items()}

    def unused(self) -> dict[str, UnusedRows]:
        """The positions of operands that hold no token."""

        def describe(name: str, index: tuple[int, ...]) -> str:
            return f"row {index[1]} of {name}, in the padding of sequence {index[0]}"

        return {
            name: UnusedRows(
                ~self.masks["mask_k" if name in _OF_KEYS else "mask_q"], partial(describe, name)
            )
            for name in ("q", "k", "v", "do")
        }

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions of the padded form of a packed tensor."""
        if name in _UNPADDED:
            return dims
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        batch = Dim("batch", len(mask), region=range(len(mask)))
        return batch, *(
            Dim("position", mask.shape[1], tile=dim.tile) if dim.name == "position" else dim
            for dim in dims
        )


def packed(tensors: Tensors, masks: Mapping[str, torch.Tensor]) -> Tensors:
    """Padded tensors as packed ones: the tokens alone; computed on access."""

    def take(name: str) -> torch.Tensor:
        tensor = tensors[name]
        if name in _UNPADDED:
            return tensor
        mask = masks["mask_k" if name in _OF_KEYS else "mask_q"]
        return tensor.transpose(1, 2)[mask].T if name in _PER_ROW else tensor[mask]

    return LazyMapping(tuple(tensors), take)


# KV caches ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KVCache:
    """The placement of packed keys and values in a cache or a pool of pages, by `seed`."""

    setting: Setting
    seed: int
    device: torch.device

    @property
    def _names(self) -> dict[str, str]:
        """Input name to packed operand: {"k_cache": "k", "v_cache": "v"}."""
        suffix = "pages" if self.setting.layout == "paged" else "cache"
        return {f"{name}_{suffix}": name for name in ("k", "v")}

    @cached_property
    def _paging(self) -> Paging:
        setting = self.setting
        assert setting.page_size is not None
        left = [length - setting.last_visible(length) for length in setting.lengths_k]
        return Paging(
            setting.lengths_k, setting.page_size, self.seed, left if setting.freed_pages else None
        )

    @property
    def _rows_shape(self) -> tuple[int, int]:
        """The first two sizes of the cache or the pool."""
        setting = self.setting
        if setting.page_size is None:
            return setting.batch, setting.capacity
        return self._paging.pool, setting.page_size

    @cached_property
    def rows(self) -> torch.Tensor:
        """[total_k] int64: the slot of each packed row, over the first two dimensions."""
        setting, size = self.setting, self._rows_shape[1]
        if setting.page_size is not None:
            return self._paging.rows.to(self.device)
        found = [torch.zeros(0, dtype=torch.int64)]
        found += [number * size + torch.arange(n) for number, n in enumerate(setting.lengths_k)]
        return torch.cat(found).to(self.device)

    @cached_property
    def tables(self) -> dict[str, torch.Tensor]:
        """`seqlens_k` [batch] and, with pages, `block_table` [batch, max_pages]; int32."""
        setting = self.setting
        lengths = torch.tensor(setting.lengths_k, dtype=torch.int32, device=self.device)
        if setting.page_size is None:
            return {"seqlens_k": lengths}
        table = self._paging.table(setting.max_pages).int().to(self.device)
        return {"block_table": table, "seqlens_k": lengths}

    def inputs(self, operands: Operands) -> dict[str, torch.Tensor]:
        """The inputs of an entry: q, the cache or pages filled with k and v, and the tables."""
        source = generator(self.seed)
        made = {"q": operands.q}
        for stored, name in self._names.items():
            packed = getattr(operands, name)
            shape = (*self._rows_shape, *packed.shape[1:])
            factor = torch.nan if self.seed % 2 else poison_scale(self.setting.dtype)
            stale = (replacement_values(source, [shape], packed.dtype)[0] * factor).to(self.device)
            stale.view(-1, *packed.shape[1:])[self.rows] = packed
            made[stored] = stale
        return made | self.tables

    def unused(self) -> dict[str, UnusedRows]:
        """The rows of the cache or the pool that hold no key."""
        if self.setting.page_size is not None:
            return {name: self._paging.unused(name) for name in self._names}
        mask = torch.ones(self._rows_shape, dtype=torch.bool)
        mask.view(-1)[self.rows.cpu()] = False

        def describe(name: str, index: tuple[int, ...]) -> str:
            return f"row {index[1]} of {name}, past the length of sequence {index[0]}"

        return {name: UnusedRows(mask, partial(describe, name)) for name in self._names}

    def packed(self, given: Tensors) -> dict[str, torch.Tensor]:
        """The inverse of `inputs`, for some of the tensors."""
        names = self._names
        return {
            names.get(name, name): tensor.flatten(0, 1)[self.rows] if name in names else tensor
            for name, tensor in given.items()
        }


def kv_cache_dims(
    setting: Setting, name: str, heads: Dim, tiles: dict[str, int]
) -> tuple[Dim, ...]:
    """The dimensions of an input or output with a KV cache; `heads` is its head dimension."""
    batch = Dim("sequence", setting.batch, region=range(setting.batch))
    of_values = name in ("out", "v_cache", "v_pages")
    dim = Dim("dim", setting.head_dim_v if of_values else setting.head_dim, tile=tiles.get("dim"))
    match name:
        case "k_cache" | "v_cache":
            return batch, Dim("position", setting.capacity, tile=tiles.get("k")), heads, dim
        case "k_pages" | "v_pages":
            assert setting.page_size is not None
            pages = Paging(setting.lengths_k, setting.page_size, 0).pool
            return Dim("page", pages), Dim("slot", setting.page_size), heads, dim
        case "lse":
            return batch, heads
    return batch, heads, dim
