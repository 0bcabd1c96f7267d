"""What an attention case is apart from its tensors: its names, and the dims of its results.

Most relations change tensors and nothing else, so their problems share the form of the case's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.attention.padded import Padding
from tlmatrix.problem.attention.stored import stored_dims
from tlmatrix.problem.deferred import Deferred
from tlmatrix.problem.frame import tile_edges
from tlmatrix.problem.model import Dim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.frame import Frame

__all__ = ["Form"]

_TENSORS = (
    "q", "k", "v", "do", "sink", "out", "lse", "delta", "dq", "dk", "dv", "dsink",
)  # fmt: skip
_STORED = ("q", "k_cache", "v_cache", "k_pages", "v_pages", "sink", "out", "lse")


@dataclass(frozen=True)
class Form:
    """A frame and the setting that its values make."""

    frame: Frame
    setting: Setting

    @cached_property
    def differentiable(self) -> bool:
        """Whether gradients are judged: autograd reaches an entry, a factory must return them."""
        spec = self.frame.spec
        if self.setting.stored:
            return False
        if spec.factory is not None:
            return any(name in spec.results for name in ("dq", "dk", "dv", "dsink"))
        return "gradients" in spec.checks

    @cached_property
    def starts(self) -> dict[str, torch.Tensor]:
        """`cu_seqlens_q` and `cu_seqlens_k`, int32; empty where sequences are not packed."""
        setting = self.setting
        if setting.layout != "thd":
            return {}
        return {
            f"cu_seqlens_{side}": torch.tensor(starts, dtype=torch.int32, device=self.frame.device)
            for side, starts in (("q", setting.starts_q), ("k", setting.starts_k))
        }

    @cached_property
    def padding(self) -> Padding:
        """Where tokens stand, in the layout `padded`."""
        pattern = str(self.frame.values.get("padding", "right"))
        return Padding(self.setting, pattern, self.frame.seed, self.frame.device)

    @cached_property
    def names(self) -> dict[str, Any]:
        """Every name but those of tensors that hold values."""
        frame, setting = self.frame, self.setting
        names = {**frame.values, **setting.names(), "sink": None, "device": frame.device}
        names["dtype"] = frame.dtype(setting.dtype)
        if frame.spec.entry and "scale" in frame.values and setting.scale is None:
            names["scale"] = None  # the axis says none: the entry's own default is under test
        if setting.padded:
            masks = self.padding.masks
            names |= {f"seqlen_{side}": masks[f"mask_{side}"].shape[1] for side in "qk"}
            if setting.shared_mask:
                names["seqlen"] = names["seqlen_q"]
        return names | self.starts

    @cached_property
    def _tiles(self) -> dict[str, int]:
        return tile_edges(self.frame.spec, self.names)

    @cached_property
    def _queries(self) -> tuple[Dim, Dim]:
        return self._side(keys=False)

    @cached_property
    def _keys(self) -> tuple[Dim, Dim]:
        return self._side(keys=True)

    def _side(self, *, keys: bool) -> tuple[Dim, Dim]:
        """The rows and the heads of queries or keys."""
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
        """The dims of every tensor that a forward or a backward may have, by name."""
        if self.setting.padded:
            return Deferred(_TENSORS, lambda name: self.padding.dims(name, self._dims_of(name)))
        if not self.setting.stored:
            return Deferred(_TENSORS, self._dims_of)
        names = [name for name in _STORED if not name.endswith(self._other_store)]
        return Deferred(tuple(names), self._stored_dims_of)

    @property
    def _other_store(self) -> str:
        return "cache" if self.setting.layout == "paged" else "pages"

    def _stored_dims_of(self, name: str) -> tuple[Dim, ...]:
        heads = (self._queries if name in ("q", "out", "lse", "sink") else self._keys)[1]
        if name == "sink":
            return (replace(heads, region=None),)
        return stored_dims(self.setting, name, heads, self._tiles)

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
