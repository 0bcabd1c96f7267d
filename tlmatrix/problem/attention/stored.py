"""Keys and values as serving keeps them: in rows of a cache, or in pages of a pool.

=======  =====================================================  ==============================
layout   tensors                                                key j of sequence b is
=======  =====================================================  ==============================
cache    k_cache, v_cache [batch, max_seqlen_k, kv_heads, dim]  row (b, j)
paged    k_pages, v_pages [pages, page_size, kv_heads, dim],    row j % page_size of page
         block_table [batch, max_pages] int32                   block_table[b, j // page_size]
=======  =====================================================  ==============================

Both have seqlens_k [batch] int32, and one query a sequence: q and out are [batch, heads, dim], lse
is [batch, heads]. The mathematics is that of packed sequences, and so are the relations; only what
an entry is handed differs. Rows that hold no key are huge or, with odd seeds, NaN; so are pages
that no sequence owns (a few are left over). Pages are in no order, and entries of the table that
name no page are outside of the pool: whoever reads any of it shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import generator, others
from tlmatrix.problem.model import Dim
from tlmatrix.problem.paging import Paging
from tlmatrix.problem.poison import huge

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.reference import Operands
    from tlmatrix.problem.model import Tensors

__all__ = ["Store", "stored_dims"]


@dataclass(frozen=True)
class Store:
    """Where the rows of packed keys and values stand; `seed` decides what is left to choice."""

    setting: Setting
    seed: int
    device: torch.device

    @property
    def _names(self) -> dict[str, str]:
        place = "pages" if self.setting.layout == "paged" else "cache"
        return {f"{name}_{place}": name for name in ("k", "v")}

    @cached_property
    def _paging(self) -> Paging:
        setting = self.setting
        assert setting.page_size is not None
        return Paging(setting.lengths_k, setting.page_size, self.seed)

    @property
    def _room(self) -> tuple[int, int]:
        """The first two sizes of what holds the rows."""
        setting = self.setting
        if setting.page_size is None:
            return setting.batch, setting.capacity
        return self._paging.pool, setting.page_size

    @cached_property
    def rows(self) -> torch.Tensor:
        """[total_k] int64: where each packed row stands, rows counted over the first two sizes."""
        setting, size = self.setting, self._room[1]
        if setting.page_size is not None:
            return self._paging.rows.to(self.device)
        found = [torch.zeros(0, dtype=torch.int64)]
        found += [number * size + torch.arange(n) for number, n in enumerate(setting.lengths_k)]
        return torch.cat(found).to(self.device)

    @cached_property
    def tables(self) -> dict[str, torch.Tensor]:
        """`seqlens_k`, and of pages `block_table`."""
        setting = self.setting
        lengths = torch.tensor(setting.lengths_k, dtype=torch.int32, device=self.device)
        if setting.page_size is None:
            return {"seqlens_k": lengths}
        table = self._paging.table(setting.max_pages).int().to(self.device)
        return {"block_table": table, "seqlens_k": lengths}

    def inputs(self, operands: Operands) -> dict[str, torch.Tensor]:
        """What an entry is handed for the operands."""
        source = generator(self.seed)
        made = {"q": operands.q}
        for stored, name in self._names.items():
            packed = getattr(operands, name)
            shape = (*self._room, *packed.shape[1:])
            factor = torch.nan if self.seed % 2 else huge(self.setting.dtype)
            stale = (others(source, [shape], packed.dtype)[0] * factor).to(self.device)
            stale.view(-1, *packed.shape[1:])[self.rows] = packed
            made[stored] = stale
        return made | self.tables

    def packed(self, given: Tensors) -> dict[str, torch.Tensor]:
        """The inverse of `inputs` for some tensors."""
        names = self._names
        return {
            names.get(name, name): tensor.flatten(0, 1)[self.rows] if name in names else tensor
            for name, tensor in given.items()
        }


def stored_dims(setting: Setting, name: str, heads: Dim, tiles: dict[str, int]) -> tuple[Dim, ...]:
    """The dims of an input or output of a stored layout; `heads` are those it has."""
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
