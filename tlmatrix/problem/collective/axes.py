"""The names of collectives, and the axes of a case as plain numbers. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.names import STORAGE, VALUES, Names, choice, dtypes, whole
from tlmatrix.spec.model.spec import WORLD, Shard

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter")
SIZES = ("rows", "cols")


def _explain_uneven(value: Value) -> str | None:
    fine = value in (None, "balanced", "ceil")
    return None if fine else f"{value!r} is not none, balanced or ceil"


NAMES = Names(
    "collective",
    axes={
        "operation": choice("operation", OPERATIONS),
        **dict.fromkeys(SIZES, whole(0)),
        "dtype": dtypes(floating=True),
        "uneven": _explain_uneven,
        **VALUES,
        WORLD: lambda _: None,  # the loader of specs checks it
    },
    settings=STORAGE,
    others=frozenset({"device"}),
    inputs=frozenset({"x"}),
    results=frozenset({"y"}),
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
        NAMES.refuse_invalid(values)
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
