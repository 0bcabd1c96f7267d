"""The key `shards`: how tensors are split across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tlmatrix.spec.model.fields import Model, ShardDim, ShardOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value

WORLD = "world"
"""The axis with the number of ranks."""

Uneven = Literal["balanced", "ceil"]


class Shard(Model):
    """How one tensor is split across ranks.

    Tensors that are not listed are replicated: each rank gets or returns the whole tensor, equal on
    all ranks. A gradient is split like its input, a cotangent like its output.
    """

    dim: ShardDim | None = None
    order: ShardOrder = "contiguous"
    uneven: Uneven | None = None
    own: bool = Field(default=False, strict=True)
    sum: bool = Field(default=False, strict=True)

    def order_of(self, values: Mapping[str, Value]) -> str:
        """The order in a case: of `$axis`, the value of the axis."""
        if self.order.startswith("$"):
            return str(values[self.order[1:]])
        return self.order
