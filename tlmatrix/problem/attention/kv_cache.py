"""KV caches: keys and values in a row per sequence (`cache`), or in pages of a pool (`paged`).

=======  =====================================================  ==============================
layout   tensors                                                key j of sequence b is
=======  =====================================================  ==============================
cache    k_cache, v_cache [batch, max_seqlen_k, kv_heads, dim]  row (b, j)
paged    k_pages, v_pages [pages, page_size, kv_heads, dim],    row j % page_size of page
         block_table [batch, max_pages] int32                   block_table[b, j // page_size]
=======  =====================================================  ==============================

Both have seqlens_k [batch] int32, and one query per sequence: q and out are [batch, heads, dim],
lse is [batch, heads]. Reference and relations compute with packed sequences; only the inputs of an
entry differ. Rows without a key hold huge values or, with odd seeds, NaN; so do a few spare pages.
Pages are shuffled, and entries of the block table past the last page of a sequence lie outside the
pool; so do those of pages that end before the window, which an allocator may have freed. An entry
that reads any of these gives wrong results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import generator, replacement_values
from tlmatrix.problem.model import Dim, UnusedRows
from tlmatrix.problem.paging import Paging
from tlmatrix.problem.poison import poison_scale

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.reference import Operands
    from tlmatrix.problem.model import Tensors


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
        return Paging(setting.lengths_k, setting.page_size, self.seed)

    @property
    def _freed_pages(self) -> list[int]:
        """The pages of each sequence that end before the window of its query, the last position."""
        window, size = self.setting.window, self.setting.page_size
        if window is None or size is None:
            return []
        return [max(length - window, 0) // size for length in self.setting.lengths_k]

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
        table = self._paging.table(setting.max_pages, self._freed_pages).int().to(self.device)
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
