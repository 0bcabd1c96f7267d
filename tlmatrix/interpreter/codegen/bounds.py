"""Accesses: which become slices, which are provably inside, and what guards the rest.

TileLang guards every dimension of a global access that it cannot prove inside: a load outside
yields the safe value, a store outside is skipped. Constant indices are never guarded, nor is
any access to shared, fragment or local memory: there, outside is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .context import Buf, Context
from .values import Affine, Val, literal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Access",
    "BoundsMixin",
    "Dim",
    "add",
    "constant",
    "constant_index",
    "scalar_affine",
    "subtract",
    "times",
    "wrapped_index",
]


def add(a: Val, b: Val) -> Val:
    """The scalar integer `a + b`, folded where it can be."""
    if a.lit is not None and b.lit is not None:
        return literal(a.lit + b.lit, a.dtype)
    if a.lit == 0:
        return b
    if b.lit == 0:
        return a
    code = f"({a.code} - {-b.lit})" if b.lit is not None and b.lit < 0 else f"({a.code} + {b.code})"
    lo = a.lo + b.lo if a.lo is not None and b.lo is not None else None
    hi = a.hi + b.hi if a.hi is not None and b.hi is not None else None
    return Val(code, a.dtype, lo=lo, hi=hi)


def subtract(a: Val, b: Val) -> Val:
    """The scalar integer `a - b`."""
    if b.lit is not None:
        return add(a, literal(-b.lit, b.dtype))
    lo = a.lo - b.hi if a.lo is not None and b.hi is not None else None
    hi = a.hi - b.lo if a.hi is not None and b.lo is not None else None
    if a.lit == 0:
        return Val(f"(-{b.code})", a.dtype, lo=lo, hi=hi)
    return Val(f"({a.code} - {b.code})", a.dtype, lo=lo, hi=hi)


def times(a: Val, factor: int) -> Val:
    """The scalar integer `a * factor`."""
    if a.lit is not None:
        return literal(a.lit * factor, a.dtype)
    if factor == 1:
        return a
    bounds = [
        None if a.lo is None else a.lo * factor,
        None if a.hi is None else a.hi * factor,
    ]
    lo, hi = bounds if factor >= 0 else reversed(bounds)
    return Val(f"({a.code} * {factor})", a.dtype, lo=lo, hi=hi)


@dataclass(frozen=True)
class Dim:
    """One dimension of an access.

    Attributes:
        value: the index.
        axis: the parallel axis a slice runs along, else None.
        base: first index of a slice, or the index itself.
        extent: how many indices a slice has; None for a single index.
        step: distance of a slice's indices.
        constant: whether the index is a constant, which nothing guards.
    """

    value: Val
    base: Val
    axis: int | None = None
    extent: Val | None = None
    step: int = 1
    constant: bool = False

    @property
    def last(self) -> Val:
        """The largest index."""
        if self.extent is None:
            return self.base
        return add(self.base, times(add(self.extent, literal(-1, "int32")), self.step))

    @property
    def code(self) -> str:
        """As the runtime's block functions take it."""
        if self.extent is None:
            return self.base.code
        return f"({self.base.code}, {self.extent.code}, {self.step})"


@dataclass(frozen=True)
class Access:
    """An access to a buffer in a parallel loop or outside one.

    Attributes:
        dims: the dimensions; meaningful slices only where `block`.
        block: whether every index is a number or a range along an axis of its own.
        conditions: what must hold at run time for the access to be inside; none when proven.
    """

    buf: Buf
    dims: tuple[Dim, ...]
    block: bool
    conditions: tuple[str, ...]

    @property
    def axes(self) -> frozenset[int]:
        """The axes the indices vary over."""
        return frozenset[int]().union(*(d.value.axes for d in self.dims))

    @property
    def inside(self) -> str:
        """Code of the run-time test."""
        return " and ".join(self.conditions)

    @property
    def dims_code(self) -> str:
        """A tuple for the runtime's block functions."""
        return "(" + ", ".join(d.code for d in self.dims) + ",)"

    @property
    def index_code(self) -> str:
        """A tuple for the runtime's gather and scatter."""
        return "(" + ", ".join(d.value.code for d in self.dims) + ",)"


class BoundsMixin(Context):
    """Classifies accesses."""

    def access(self, buf: Buf, indices: list[Val], *, constant: list[bool] | None = None) -> Access:
        """Classify an access to `buf`."""
        shape = buf.shape
        if buf.lane_axes:
            axes = [self.axis_at(position) for position in buf.lane_axes]
            indices = [*indices, *(axis.iota for axis in axes)]
            shape = (*shape, *(axis.extent for axis in axes))
            constant = [*(constant or [False] * len(buf.shape)), *([False] * len(axes))]
        if len(indices) != len(shape):
            raise self.refuse(f"{len(indices)} indices into {buf.name} of rank {len(shape)}")
        used: set[int] = set()
        dims: list[Dim] = []
        block = True
        for k, index in enumerate(indices):
            value = wrapped_index(index, shape[k])
            is_constant = value.lit is not None if constant is None else constant[k]
            # TileLang guards what is left after simplification: a grid of one block has no index.
            is_constant = is_constant or (index.lo is not None and index.lo == index.hi)
            dim = Dim(value, value, constant=is_constant)
            if value.axes:
                affine = value.affine
                if affine is not None and len(affine.coefficients) == 1:
                    ((position, step),) = affine.coefficients
                    if step > 0 and position not in used:
                        used.add(position)
                        extent = self.axis_at(position).extent
                        dims.append(Dim(value, affine.base, position, extent, step))
                        continue
                block = False
            dims.append(dim)
        conditions: list[str] = []
        if block:
            for dim, n in zip(dims, shape, strict=True):
                conditions += self.conditions(dim, n)
        return Access(buf, tuple(dims), block, tuple(conditions))

    def conditions(self, dim: Dim, n: Val) -> list[str]:
        """What is not proven of `0 <= first` and `last < n`."""
        found = []
        first, last = dim.base, dim.last
        if first.lo is None or first.lo < 0:
            found.append(f"{first.code} >= 0")
        if not self._below(dim, last, n):
            found.append(f"{last.code} < {n.code}")
        return found

    @staticmethod
    def _below(dim: Dim, last: Val, n: Val) -> bool:
        if n.lit is not None and last.hi is not None and last.hi < n.lit:
            return True
        if dim.extent is None:
            return last.below is not None and last.below == n.code
        return dim.base.lit == 0 and dim.step == 1 and dim.extent.code == n.code

    def difference(self, a: Val, b: Val) -> tuple[Val, Val] | None:
        """Scalars `min(a - b)` and `max(a - b)` over all lanes, where both are affine."""
        left, right = a.affine or scalar_affine(a), b.affine or scalar_affine(b)
        if left is None or right is None:
            return None
        coefficients: dict[int, int] = dict(left.coefficients)
        for axis, c in right.coefficients:
            coefficients[axis] = coefficients.get(axis, 0) - c
        low = high = subtract(left.base, right.base)
        for axis, c in coefficients.items():
            if c == 0:
                continue
            span = times(add(self.axis_at(axis).extent, literal(-1, "int32")), c)
            if c > 0:
                high = add(high, span)
            else:
                low = add(low, span)
        return low, high


def wrapped_index(index: Val, n: Val) -> Val:
    """An index that is provably negative counts from the end, as TileLang has it."""
    if index.hi is None or index.hi >= 0:
        return index
    if index.scalar:
        return add(index, n)
    affine = index.affine
    if affine is not None:
        affine = Affine(add(affine.base, n), affine.coefficients)
    return Val(f"({index.code} + {n.code})", index.dtype, index.axes, affine=affine)


def scalar_affine(value: Val) -> Affine | None:
    """A scalar integer as an affine form without axes."""
    return Affine(value, ()) if value.scalar else None


def constant(dims: Iterable[Dim]) -> bool:
    """Whether a slice is the same wherever it stands: it begins and ends at constants."""
    return all(
        d.base.lit is not None and (d.extent is None or d.extent.lit is not None) for d in dims
    )


def constant_index(index: Any) -> bool:
    """Whether an index of the IR has no variable and no load, so that TileLang never guards it."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, (tvm.tirx.Var, tvm.tirx.BufferLoad)):
            found = True

    tvm.tirx.stmt_functor.post_order_visit(index, visit)
    return not found
