"""Buffers and accesses: which become slices, which are provably inside, what guards the rest.

TileLang guards every dimension of a global access that it cannot prove inside: a load outside
yields the safe value, a store outside is skipped. Constant indices are never guarded, nor is
any access to shared, fragment or local memory: there, outside is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.expressions import (
    UNKNOWN,
    is_constant_index,
    is_negative_under,
)
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .numbers import add, times
from .values import Affine, Val, literal

if TYPE_CHECKING:
    from .emitter import Emitter


@dataclass
class Buf:
    """A buffer of the kernel and how the generated source holds it.

    Attributes:
        name: the user's name, for messages.
        code: the NumPy array in the generated source.
        dtype: the IR's dtype.
        shape: extents, literals where static.
        scope: TileLang's memory scope.
        codec: name of the codec of low-precision memory that holds what the GPU's would: global
            memory, and what the kernel also views under another dtype.
        rounding: name of the codec to round with when a low-precision local is written, else None.
        variable: whether the buffer is a Python variable (a `T.alloc_var`).
        safe: code of what a guarded load outside yields.
        private_axes: axes along which a local buffer has one copy for each iteration.
        per_thread: whether those axes are the threads of a role.
        views: names of views of it that never change, by their code.
    """

    name: str
    code: str
    dtype: str
    shape: tuple[Val, ...]
    scope: str
    codec: str | None = None
    rounding: str | None = None
    variable: bool = False
    safe: str = "0"
    private_axes: tuple[int, ...] = ()
    per_thread: bool = False
    views: dict[str, str] = field(default_factory=dict)

    @property
    def is_global(self) -> bool:
        """Whether it lies in global memory, where TileLang guards accesses."""
        return self.scope == "global"

    @property
    def narrows(self) -> bool:
        """Whether packing an element is its conversion; it keeps infinities of `float8_e5m2`."""
        return self.codec is not None and self.codec != "e5m2"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape in the kernel, where all of it is known when the program is emitted."""
        if any(n.lit is None for n in self.shape):
            return None
        return tuple(n.lit for n in self.shape)


# Accesses ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dim:
    """One dimension of an access.

    Attributes:
        value: the index.
        base: first index of a slice, or the index itself.
        axis: the parallel axis a slice runs along, else None.
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

    @property
    def is_fixed(self) -> bool:
        """Whether it is a constant index, which TileLang does not guard."""
        return self.constant and self.extent is None


@dataclass(frozen=True)
class Access:
    """An access to a buffer in a parallel loop or outside one.

    Attributes:
        buf: the buffer.
        shape: its extents, and those of its private copies.
        dims: the dimensions; meaningful slices only where `block`.
        block: whether every index is a number or a range along an axis of its own.
        conditions: what must hold at run time for the access to be inside; none when proven.
    """

    buf: Buf
    shape: tuple[Val, ...]
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

    @property
    def element(self) -> str:
        """The indices of the first element, separated by commas."""
        return ", ".join(d.base.code for d in self.dims)


def access_at(e: Emitter, buf: Buf, nodes: Sequence[Any]) -> Access:
    """The access to `buf` at indices of the IR."""
    with index_width(e, buf):
        indices = [under_conditions(e, i, e.expr(i)) for i in nodes]
    return classify(e, buf, indices, [is_constant_index(i) for i in nodes])


def index_width(e: Emitter, buf: Buf) -> AbstractContextManager[None]:
    """Emit indices of `buf`: where an extent has 64 bits, so have they and the bounds check.

    Where all extents are int32, TileLang computes the offset in 64 bits, the bounds check in 32.
    """
    return e.inside(wide_indices=any(n.dtype == "int64" or (n.lit or 0) >> 31 for n in buf.shape))


def classify(e: Emitter, buf: Buf, indices: Sequence[Val], constant: Sequence[bool]) -> Access:
    """Classify an access; `constant` says which indices have no variable and no load."""
    shape = buf.shape
    if buf.private_axes:
        axes = [e.axis_at(position) for position in buf.private_axes]
        indices = [*indices, *(axis.iota for axis in axes)]
        shape = (*shape, *(axis.extent for axis in axes))
        constant = [*constant, *([False] * len(axes))]
    if len(indices) != len(shape):
        raise e.refuse(f"{len(indices)} indices into {buf.name} of rank {len(shape)}")
    used: set[int] = set()
    dims: list[Dim] = []
    block = True
    for index, n, is_constant in zip(indices, shape, constant, strict=True):
        value = wrapped_index(index, n)
        # TileLang guards what is left after simplification: a grid of one block has no index.
        is_constant = is_constant or (index.lo is not None and index.lo == index.hi)  # noqa: PLW2901
        dim = Dim(value, value, constant=is_constant)
        affine = value.affine
        if value.axes and affine is not None and len(affine.coefficients) == 1:
            ((position, step),) = affine.coefficients
            if step > 0 and position not in used:
                used.add(position)
                dim = Dim(value, affine.base, position, e.axis_at(position).extent, step)
        block = block and (dim.axis is not None or value.scalar)
        dims.append(dim)
    unproven: list[str] = []
    if block:
        for dim, n in zip(dims, shape, strict=True):
            unproven += conditions(dim, n)
    return Access(buf, shape, tuple(dims), block, tuple(unproven))


def conditions(dim: Dim, n: Val) -> list[str]:
    """What is not proven of `0 <= first` and `last < n`."""
    found = []
    first, last = dim.base, dim.last
    if first.lo is None or first.lo < 0:
        found.append(f"{first.code} >= 0")
    if not _is_below(dim, last, n):
        found.append(f"{last.code} < {n.code}")
    return found


def _is_below(dim: Dim, last: Val, n: Val) -> bool:
    if n.lit is not None and last.hi is not None and last.hi < n.lit:
        return True
    if dim.extent is None:
        return last.below is not None and last.below == n.code
    return dim.base.lit == 0 and dim.step == 1 and dim.extent.code == n.code


def under_conditions(e: Emitter, node: Any, index: Val) -> Val:
    """An index, with the upper bound -1 if the branches around it prove that it is negative."""
    known = (index.hi is not None and index.hi < 0) or (index.lo is not None and index.lo >= 0)
    if known or not e.conditions:
        return index
    ranges = {}
    for var in walk(node, *(condition for condition, _ in e.conditions)):
        value = e.vars.get(var) if type(var) is ir.Var else None
        if isinstance(value, Val) and not value.mutable:
            low, high = value.lo, value.hi
            ranges[var] = (
                UNKNOWN[0] if low is None else low,
                UNKNOWN[1] if high is None else high,
            )
    if not is_negative_under(node, e.conditions, ranges):
        return index
    # The lower bound goes, so that an index of one value is not taken for a constant.
    return replace(index, lo=None, hi=-1)


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


def is_unchanging(dims: Iterable[Dim]) -> bool:
    """Whether a slice begins and ends at constants, so that it is the same wherever it stands."""
    return all(
        d.base.lit is not None and (d.extent is None or d.extent.lit is not None) for d in dims
    )


def is_guarded(e: Emitter, buf: Buf) -> bool:
    """Whether TileLang guards this buffer's accesses."""
    return buf.is_global and e.guard


def skips_outside(e: Emitter, buf: Buf) -> bool:
    """Whether an access of a single element or block outside is skipped when it runs."""
    return e.reports_bounds or is_guarded(e, buf)


def check_constants(e: Emitter, access: Any) -> None:
    """Check constant indices into global memory, which are not guarded."""
    buf = access.buf
    if e.reports_bounds or not is_guarded(e, buf):
        return
    for k, (dim, n) in enumerate(zip(access.dims, buf.shape, strict=False)):
        if dim.is_fixed and conditions(dim, n):
            e.w.line(f"require({buf.name!r}, {k}, {dim.base.code}, {buf.code}.shape)")
