"""An attention case without its tensors: its names, and the dimensions of its results.

Most relations only replace tensors, so their problems share the structure of the original.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.attention.kv_cache import kv_cache_dims
from tlmatrix.problem.attention.padded import Padding
from tlmatrix.problem.case_setup import tile_sizes
from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.problem.model import Dim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.case_setup import CaseSetup

_TENSORS = (
    "q", "k", "v", "do", "sink", "out", "lse", "delta", "dq", "dk", "dv", "dsink",
)  # fmt: skip
_CACHE_NAMES = ("q", "k_cache", "v_cache", "k_pages", "v_pages", "sink", "out", "lse")


@dataclass(frozen=True)
class Structure:
    """A case and the attention setting that its axis values describe."""

    setup: CaseSetup
    setting: Setting

    @cached_property
    def differentiable(self) -> bool:
        """Whether gradients are checked: by autograd of an entry, or as results of a factory."""
        spec = self.setup.spec
        if self.setting.has_cache:
            return False
        if spec.factory is not None:
            return any(name in spec.results for name in ("dq", "dk", "dv", "dsink"))
        return "gradients" in spec.checks

    @cached_property
    def starts(self) -> dict[str, torch.Tensor]:
        """`cu_seqlens_q` and `cu_seqlens_k`, [batch + 1] int32; empty unless the layout is thd."""
        setting = self.setting
        if setting.layout != "thd":
            return {}
        return {
            f"cu_seqlens_{side}": torch.tensor(starts, dtype=torch.int32, device=self.setup.device)
            for side, starts in (("q", setting.starts_q), ("k", setting.starts_k))
        }

    @cached_property
    def padding(self) -> Padding:
        """The positions of tokens in the layout `padded`."""
        pattern = str(self.setup.values.get("padding", "right"))
        return Padding(self.setting, pattern, self.setup.seed, self.setup.device)

    @cached_property
    def names(self) -> dict[str, Any]:
        """All names that entries may use, except the tensors with values (q, k, …)."""
        setup, setting = self.setup, self.setting
        names = {**setup.values, **setting.names(), "sink": None, "device": setup.entry_device}
        names["dtype"] = setup.dtype(setting.dtype)
        if setup.spec.entry and "scale" in setup.values and setting.scale is None:
            names["scale"] = None  # `scale: none` tests the default of the entry
        if setting.padded:
            masks = self.padding.masks
            names |= {f"seqlen_{side}": masks[f"mask_{side}"].shape[1] for side in "qk"}
            if setting.shared_mask:
                names["seqlen"] = names["seqlen_q"]
        return names | self.starts

    @cached_property
    def _tiles(self) -> dict[str, int]:
        return tile_sizes(self.setup.spec, self.names)

    @cached_property
    def _queries(self) -> tuple[Dim, Dim]:
        return self._side(keys=False)

    @cached_property
    def _keys(self) -> tuple[Dim, Dim]:
        return self._side(keys=True)

    def _side(self, *, keys: bool) -> tuple[Dim, Dim]:
        """The dimensions of rows and heads, of queries or keys."""
        setting, tile = self.setting, self._tiles.get("k" if keys else "q")
        count = setting.kv_heads if keys else setting.heads
        heads = Dim("kv_head" if keys else "head", count, region=range(count))
        lengths = setting.lengths_k if keys else setting.lengths_q
        if not setting.packed:
            return Dim("position", lengths[0], tile=tile), heads
        starts = setting.starts_k if keys else setting.starts_q
        region = tuple(chain.from_iterable(map(repeat, range(setting.batch), lengths)))
        return Dim("position", starts[-1], region, starts, "sequence", tile), heads

    @cached_property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dimensions of every tensor of a forward or backward, by name; computed on access."""
        if self.setting.padded:
            return LazyMapping(_TENSORS, lambda name: self.padding.dims(name, self._dims_of(name)))
        if not self.setting.has_cache:
            return LazyMapping(_TENSORS, self._dims_of)
        names = [name for name in _CACHE_NAMES if not name.endswith(self._absent_suffix)]
        return LazyMapping(tuple(names), self._cache_dims_of)

    @property
    def _absent_suffix(self) -> str:
        return "cache" if self.setting.layout == "paged" else "pages"

    def _cache_dims_of(self, name: str) -> tuple[Dim, ...]:
        heads = (self._queries if name in ("q", "out", "lse", "sink") else self._keys)[1]
        if name == "sink":
            return (replace(heads, region=None),)
        return kv_cache_dims(self.setting, name, heads, self._tiles)

    def _dims_of(self, name: str) -> tuple[Dim, ...]:
        setting = self.setting
        rows, heads = self._keys if name in ("k", "v", "dk", "dv") else self._queries
        if name in ("sink", "dsink"):
            return (replace(heads, region=None),)
        last = setting.head_dim_v if name in ("out", "do", "v", "dv") else setting.head_dim
        dim = Dim("dim", last, tile=self._tiles.get("dim"))
        if name in ("lse", "delta"):
            dims: tuple[Dim, ...] = (heads, rows)
        else:
            dims = (heads, rows, dim) if setting.layout == "bhsd" else (rows, heads, dim)
        if setting.packed:
            return dims
        return (Dim("batch", setting.batch, region=range(setting.batch)), *dims)
