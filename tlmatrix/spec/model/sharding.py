"""How tensors are shared out among ranks, as a spec says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tlmatrix.spec.model.fields import Model, ShardDim, ShardOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value

__all__ = ["WORLD", "Shard", "Uneven"]

WORLD = "world"
"""The axis that counts ranks."""

Uneven = Literal["balanced", "ceil"]


class Shard(Model):
    """How one tensor is shared out among the ranks.

    A tensor that is not listed every rank has whole: it is given to each, or returned by each and
    must be alike on all. A gradient is shared out as its input, a cotangent as its output.
    """

    dim: ShardDim | None = Field(
        default=None,
        description="The dimension that is split: its number, or its name as findings have it "
        "(`position`, or `seqlen`, of attention, which is split inside each sequence; `m`, `n`, "
        "`k` of a GEMM).",
        examples=[0, "seqlen"],
    )
    order: ShardOrder = Field(
        default="contiguous",
        description="Which part is whose. `contiguous`: rank r has the r-th of W parts. `zigzag`: "
        "of 2 W chunks rank r has number r and number 2 W - 1 - r, so that causal attention costs "
        "all ranks the same. `$axis`: what that axis says.",
        examples=["zigzag", "$sharding"],
    )
    uneven: Uneven | None = Field(
        default=None,
        description="How a length is split that the parts do not divide, if the entry takes such: "
        "`balanced` gives the first parts one element more, `ceil` gives every part the length "
        "divided and rounded up, so that the last are shorter or empty. Without it such a case is "
        "an error.",
        examples=["balanced"],
    )
    own: bool = Field(
        default=False,
        strict=True,
        description="Whether every rank has a tensor of its own, without the dimension `dim`, "
        "which counts the ranks: the terms of a reduce-scatter.",
        examples=[True],
    )
    sum: bool = Field(
        default=False,
        strict=True,
        description="Whether a result is the sum of what the ranks return (in place of `dim`): "
        "the gradient of a tensor that every rank has whole.",
        examples=[True],
    )

    def order_of(self, values: Mapping[str, Value]) -> str:
        """The order in a case; where it is that of an axis, the value of the axis."""
        if self.order.startswith("$"):
            return str(values[self.order[1:]])
        return self.order
