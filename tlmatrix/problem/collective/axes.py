"""The names of collectives, and the axes of a case as plain numbers. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.name_table import (
    DEVICE,
    VALUES,
    Document,
    Values,
    axis,
    choice,
    dtypes,
    storage,
    tensor,
    whole,
)
from tlmatrix.spec.model.sharding import WORLD, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value

OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter")
SIZES = ("rows", "cols")


def _explain_uneven(value: Value) -> str | None:
    fine = value in (None, "balanced", "ceil")
    return None if fine else f"{value!r} is not none, balanced or ceil"


PAGE = Document(
    "collective",
    "The problem `collective`",
    """\
`problem: collective` computes an all-gather, an all-reduce or a reduce-scatter of rows over the
ranks of the axis `world`. Shapes are global; the entry of each rank gets its shard, and may also
take `rank`, `group` and `context` ([several GPUs](../../guides/several-gpus.md)). There
are no gradients. Shapes depend on `operation`, not on a layout.""",
    (
        axis("operation", "the collective", choice("operation", OPERATIONS)),
        axis(WORLD, "number of ranks", Values("1 or more", lambda _: None)),
        axis("rows", "rows of the global tensor", whole(0)),
        axis("cols", "columns of the global tensor", whole(0)),
        axis("dtype", "of x and y", dtypes(floating=True)),
        axis(
            "uneven",
            "how rows are sharded if ranks do not divide them",
            Values("`balanced`, `ceil`", _explain_uneven),
            "none",
        ),
        VALUES,
        storage("`offset`, `sliced`, `transposed`, `ones`"),
        DEVICE,
        tensor(
            "x",
            "for `all_gather` the rows, sharded over ranks; else the terms, one per rank",
            {
                "all_gather": "[rows, cols]",
                "all_reduce": "[world, rows, cols]",
                "reduce_scatter": "[world, rows, cols]",
            },
            "dtype",
        ),
        tensor(
            "y",
            "the rows, or the sum; for `reduce_scatter` sharded over ranks",
            "[rows, cols]",
            "dtype",
            roles=("output",),
        ),
    ),
    relations=("rows_permuted", "ranks_permuted", "doubled"),
)


@dataclass(frozen=True)
class CollectiveSetting:
    """y = x or the sum of x over `world` ranks; y and the x of a rank are [rows, cols]."""

    operation: str
    rows: int
    cols: int
    world: int
    dtype: str
    uneven: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> CollectiveSetting:
        """The setting of a case; raises ValueError if axis values are invalid or missing."""
        for needed in ("operation", "dtype", WORLD, *SIZES):
            if needed not in values:
                raise ValueError(f"collective needs the axis {needed}")
        PAGE.refuse_invalid(values)
        rows, cols, world = (int(values[axis]) for axis in (*SIZES, WORLD))  # type: ignore[arg-type]
        uneven = values.get("uneven")
        dtype = str(values["dtype"])
        operation = str(values["operation"])
        return cls(operation, rows, cols, world, dtype, None if uneven is None else str(uneven))

    @property
    def adds(self) -> bool:
        """Whether the tensors of the ranks are added."""
        return self.operation != "all_gather"

    def names(self) -> dict[str, Any]:
        """The names for entries and expressions, without tensors; sizes are global."""
        names = asdict(self)
        del names[WORLD]
        return names

    def shards(self) -> dict[str, Shard]:
        """The sharding of x and y: rows over ranks, or a term per rank."""
        rows = Shard.model_validate({"dim": "row", "uneven": self.uneven})
        terms = Shard(dim="rank", own=True)
        match self.operation:
            case "all_gather":
                return {"x": rows}
            case "all_reduce":
                return {"x": terms}
        return {"x": terms, "y": rows}
