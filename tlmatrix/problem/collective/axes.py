"""The axes of a collective case as plain numbers. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import explain_dtype
from tlmatrix.problem.case_setup import listed_axis_values
from tlmatrix.problem.collective.names import ROWS
from tlmatrix.problem.distributions import explain_distribution
from tlmatrix.problem.name_lint import lint_arguments, lint_results
from tlmatrix.problem.name_table import names_of
from tlmatrix.problem.storage import explain_storage
from tlmatrix.spec.model.sharding import WORLD, Shard
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter")
_UNEVEN = (None, "balanced", "ceil")
_SIZES = ("rows", "cols")
OPTIONAL = frozenset({"values", "storage"})
DATA_AXES = frozenset({*_SIZES, *OPTIONAL, "uneven"})
AXES = names_of(ROWS, "axis")
"""The axes that the family reads; an entry may take others."""


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
        for axis in ("operation", "dtype", WORLD, *_SIZES):
            if axis not in values:
                raise ValueError(f"collective needs the axis {axis}")
        for axis, value in values.items():
            if reason := _explain(axis, value):
                raise ValueError(f"{axis}: {reason}")
        rows, cols, world = (int(values[axis]) for axis in (*_SIZES, WORLD))  # type: ignore[arg-type]
        uneven = values.get("uneven")
        return cls(
            str(values["operation"]),
            rows,
            cols,
            world,
            str(values["dtype"]),
            None if uneven is None else str(uneven),
        )

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


def _explain(axis: str, value: Value) -> str | None:
    """Why `value` is invalid for `axis`; None if it is valid."""
    match axis:
        case "operation":
            known = isinstance(value, str) and value in OPERATIONS
            return None if known else f"unknown operation {value!r}{nearest(value, OPERATIONS)}"
        case "rows" | "cols":
            fine = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return None if fine else f"{value!r} is not an integer >= 0"
        case "dtype":
            return explain_dtype(value, floating=True)
        case "uneven":
            return None if value in _UNEVEN else f"{value!r} is not none, balanced or ceil"
        case "storage":
            return explain_storage(value)
        case "values":
            return explain_distribution(value)
    return None


def lint(spec: Spec) -> Iterator[Issue]:
    """Located issues of the spec. Axes that the family does not know belong to the entry."""
    for path, axis, value in listed_axis_values(spec):
        if axis in AXES and (reason := _explain(axis, value)):
            yield spec.issue(path, f"{axis}: {reason}")
    for axis, values in (
        ("operation", "[reduce_scatter]"),
        (WORLD, "[1, 2, 4]"),
        ("rows", "[64]"),
        ("cols", "[64]"),
        ("dtype", "[float16]"),
    ):
        if axis not in spec.axes:
            message = f"collective needs the axis {axis}; add {axis}: {values}"
            yield spec.issue(("axes",), message)
    names = names_of(ROWS, "axis", "name")
    yield from lint_arguments(spec, names, names_of(ROWS, "input", "output"))
    yield from lint_results(spec, names_of(ROWS, "output"))
