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

    dim: ShardDim | None = Field(
        default=None,
        description="The dimension that is split: its number, or its name in findings "
        "(`position`, or `seqlen`, of attention, which is split inside each sequence; `m`, `n`, "
        "`k` of a GEMM).",
        examples=[0, "seqlen"],
    )
    order: ShardOrder = Field(
        default="contiguous",
        description="The part of each rank. `contiguous`: rank r has part r of W. `zigzag`: rank r "
        "has chunks r and 2 W - 1 - r of 2 W, which balances causal attention. `$axis`: the value "
        "of that axis.",
        examples=["zigzag", "$sharding"],
    )
    uneven: Uneven | None = Field(
        default=None,
        description="How to split a length that the number of parts does not divide: `balanced` "
        "gives the first parts one element more; `ceil` rounds the size of parts up, so that the "
        "last are shorter or empty. By default such a case is an error.",
        examples=["balanced"],
    )
    own: bool = Field(
        default=False,
        strict=True,
        description="Whether `dim` is the dimension of ranks, which the tensor of each rank lacks: "
        "the terms of a reduce-scatter.",
        examples=[True],
    )
    sum: bool = Field(
        default=False,
        strict=True,
        description="Whether a result is the sum of the ranks' results (instead of `dim`): the "
        "gradient of a replicated tensor.",
        examples=[True],
    )

    def order_of(self, values: Mapping[str, Value]) -> str:
        """The order in a case: of `$axis`, the value of the axis."""
        if self.order.startswith("$"):
            return str(values[self.order[1:]])
        return self.order
