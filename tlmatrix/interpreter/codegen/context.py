"""What every part of the generator shares: names, buffers, the axes and mask in force."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.remedies import remedy

from .hooks import Hooks
from .source import Location, Writer
from .values import LOW_PRECISION, Affine, Val, literal, numpy_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Axis", "Buf", "Context", "Dest"]

# Functions that torch computes faster than numpy on the memory of a tile.
TORCH_FUNCTIONS = {
    name: f"torch.{name}" for name in ("exp2", "log2", "log", "tanh", "sigmoid", "rsqrt")
}


@dataclass
class Buf:
    """A buffer of the kernel and how the generated source holds it.

    Attributes:
        name: the user's name, for messages.
        code: the numpy array in the generated source.
        dtype: the IR's dtype.
        shape: extents, literals where static.
        scope: TileLang's memory scope.
        codec: name of the codec of low-precision memory that holds what the GPU's would: global
            memory, and what the kernel also views under another dtype.
        rounding: name of the codec to round with when a low-precision local is written, else None.
        variable: whether the buffer is a Python variable (a `T.alloc_var`).
        safe: code of what a guarded load outside yields.
        lane_axes: axes along which a local buffer has one copy a lane, in a parallel loop.
        of_threads: whether those lanes are the threads, outside of parallel loops.
        whole: the shape it has in the kernel, where fewer rows of it are computed.
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
    lane_axes: tuple[int, ...] = ()
    of_threads: bool = False
    views: dict[str, str] = field(default_factory=dict)
    whole: tuple[Val, ...] | None = None

    @property
    def is_global(self) -> bool:
        """Whether TileLang guards accesses to it."""
        return self.scope == "global"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape in the kernel, where all of it is known at generation."""
        shape = self.whole or self.shape
        if any(n.lit is None for n in shape):
            return None
        return tuple(n.lit for n in shape)


@dataclass(frozen=True)
class Axis:
    """A parallel loop in force: a dimension of every array its body computes."""

    position: int
    extent: Val
    iota: Val


@dataclass
class Dest:
    """The view a statement stores to, while its value may still be computed into it."""

    view: str
    name: str
    np_dtype: str
    axes: frozenset[int]
    reads_left: int
    live: int = 0


class Context(Hooks):
    """State of one generation."""

    def __init__(self, guard: bool, spans: Callable[[Any], Location | None]) -> None:
        self.w = Writer()
        self.prologue = Writer(_names=self.w._names)  # noqa: SLF001  # one pool of names
        self.guard = guard
        # Where a refusal is that no line of the kernel can be told of.
        self.kernel = ""
        self.kernel_place = ""
        self.span_of = spans
        self.vars: dict[Any, Val | Any] = {}
        self.deferred: dict[Any, Any] = {}
        self.buffers: dict[Any, Buf] = {}
        self.axes: list[Axis] = []
        self.rank = 0
        self.mask: Val | None = None
        self.dest: Dest | None = None
        # Shapes and strides are computed on the host, in 64 bits.
        self.wide = False
        # Safe values and layouts that a block annotates; buffers whose address is taken.
        self.safe_later: dict[str, Any] = {}
        self.layouts: dict[str, Any] = {}
        # Elements that vector atomics take together, by buffer.
        self.together: dict[str, int] = {}
        self.addressed: set[Any] = set()
        # Memory that a kernel sees under several dtypes, one of them a low-precision one.
        self.viewed: set[Any] = set()
        # Reducers: what combines their contributions.
        self.reducers: dict[str, str] = {}
        # Arrays and views made once, before the grid; and torch's views of them.
        self.fixed: set[str] = set()
        self._tensors: dict[str, str] = {}
        self._turned: dict[str, str] = {}
        self._iotas: dict[tuple[str, int, int], str] = {}
        # Names that are made anew for a number of rows, by the name of that; how they are made.
        self.cut_names: dict[str, str] = {}
        self.cut_lines: dict[str, list[str]] = {}
        self.gated: set[str] = set()
        # Whether work may be left out that no value depends on; and data that needs no poison.
        self.shortens = True
        self.written_first: frozenset[Any] = frozenset()
        # A fill with zeros and the product after it that starts from them.
        self.from_zero: tuple[Any, ...] = ()

    def expr(self, node: Any) -> Val:
        """The value of an expression."""
        raise NotImplementedError

    def stmt(self, node: Any) -> None:
        """Write one statement."""
        raise NotImplementedError

    def settled(self, value: Val) -> Val:
        """A value within its dtype, for an operation that would see the difference."""
        raise NotImplementedError

    # -- names and errors

    def refuse(self, what: str) -> Unsupported:
        """The error for an operation that is not modelled, with the user's line."""
        where = f" ({self.w.location})" if self.w.location is not None else self.kernel_place
        return Unsupported(f"the interpreter does not model {what}{where}{remedy(what)}")

    def temp(self, stem: str = "t") -> str:
        """A fresh name."""
        return self.w.fresh(stem)

    def tensor(self, code: str) -> str:
        """Code of torch's view of an array, made once where the array is."""
        if code not in self.fixed:
            return f"torch.from_numpy({code})"
        if code not in self._tensors:
            name = self.prologue.fresh(f"{code}_t")
            self.once(name, f"torch.from_numpy({code})", code)
            self._tensors[code] = name
        return self._tensors[code]

    def turned(self, code: str) -> str | None:
        """Code of torch's transposed view of an array; None where it would be made at every use."""
        if code not in self.fixed:
            return None
        if code not in self._turned:
            name = self.prologue.fresh(f"{code}_turned")
            self.once(name, f"{self.tensor(code)}.t()", code)
            self._turned[code] = name
        return self._turned[code]

    def once(self, name: str, code: str, of: str) -> None:
        """Define what stays the same as long as `of` does: before the grid, or when it is cut."""
        rows = self.cut_names.get(of)
        if rows is None:
            self.prologue.line(f"{name} = {code}")
        else:
            self.cut_lines[rows].append(f"{name} = {code}")
            self.cut_names[name] = rows

    def rows_of(self, key: Any) -> Val | None:
        """How many rows are computed of a buffer's data or by a loop's variable; None for all."""
        raise NotImplementedError

    # -- axes

    def axis_at(self, position: int) -> Axis:
        """The axis in force at a position."""
        for axis in self.axes:
            if axis.position == position:
                return axis
        raise self.refuse("a value of an inner parallel loop used outside of it")

    def push_axis(self, extent: Val) -> Axis:
        """Enter a parallel loop."""
        position = len(self.axes)
        if extent.lit is not None or extent.code in self.cut_names:
            key = (extent.code, position, self.rank)
            if key not in self._iotas:
                name = self.prologue.fresh(f"i{position}_{extent.code}")
                self.once(name, f"iota({extent.code}, {position}, {self.rank})", extent.code)
                self._iotas[key] = name
            code = self._iotas[key]
        else:
            code = self.temp(f"i{position}")
            self.w.line(f"{code} = iota({extent.code}, {position}, {self.rank})")
        zero = literal(0, "int32")
        iota = Val(
            code,
            "int32",
            frozenset({position}),
            affine=Affine(zero, ((position, 1),)),
            lo=0,
            hi=extent.hi - 1 if extent.hi is not None else None,
            below=extent.code,
        )
        axis = Axis(position, extent, iota)
        self.axes.append(axis)
        return axis

    def shape_of(self, axes: frozenset[int]) -> str:
        """Code of the broadcast shape of a value that varies over `axes`."""
        extents = [self.axis_at(p).extent.code if p in axes else "1" for p in range(self.rank)]
        return "(" + ", ".join(extents) + ("," if len(extents) == 1 else "") + ")"

    @property
    def all_axes(self) -> frozenset[int]:
        """The axes in force."""
        return frozenset(axis.position for axis in self.axes)

    # -- operations on arrays

    def consume(self, *values: Val) -> None:
        """Note that views of the destination were used up."""
        if self.dest is not None:
            for value in values:
                if value.alias == self.dest.name:
                    self.dest.live -= 1

    def free_dest(self, axes: frozenset[int], np_dtype: str) -> str | None:
        """The destination's view, where a result of this kind may be written to it now."""
        dest = self.dest
        if (
            dest is not None
            and dest.axes == axes
            and dest.np_dtype == np_dtype
            and dest.reads_left == 0
            and dest.live == 0
        ):
            return dest.view
        return None

    def result(self, code: str, dtype: str, axes: frozenset[int], *, exact: bool) -> Val:
        """A value that an operation has just written to `code`."""
        dest = self.dest
        if dest is not None and code == dest.view:
            dest.live += 1
            return Val(code, dtype, axes, exact=exact, owned=True, alias=dest.name)
        return Val(code, dtype, axes, exact=exact, owned=True)

    def emit(self, function: str, args: tuple[Val, ...], dtype: str, *, exact: bool = True) -> Val:
        """Write `function(*args)` into a place that is free: the destination or a temporary."""
        axes = frozenset[int]().union(*(a.axes for a in args))
        codes = ", ".join(a.code for a in args)
        self.consume(*args)
        np_dtype = numpy_name(dtype)
        out = self.free_dest(axes, np_dtype)
        if out is None:
            for a in args:
                if (
                    a.owned
                    and a.axes == axes
                    and numpy_name(a.dtype) == np_dtype
                    and a.alias is None
                ):
                    out = a.code
                    break
        in_torch = TORCH_FUNCTIONS.get(function)
        if out is not None and in_torch and out in self.fixed and args[0].code in self.fixed:
            self.w.line(f"{in_torch}({self.tensor(args[0].code)}, out={self.tensor(out)})")
        elif out is not None:
            self.w.line(f"{function}({codes}, out={out})")
        else:
            out = self.temp()
            self.w.line(f"{out} = {function}({codes})")
        return self.result(out, dtype, axes, exact=exact)

    def named(self, code: str, dtype: str, args: tuple[Val, ...], *, exact: bool = True) -> Val:
        """Evaluate `code` now, so that later stores do not change what it saw."""
        axes = frozenset[int]().union(*(a.axes for a in args))
        self.consume(*args)
        name = self.temp()
        self.w.line(f"{name} = {code}")
        return Val(name, dtype, axes, exact=exact, owned=True)

    def pure(self, code: str, dtype: str, args: tuple[Val, ...], **known: Any) -> Val:
        """An integer or boolean expression: left inline unless it reads memory."""
        axes = frozenset[int]().union(*(a.axes for a in args))
        if axes and any(a.alias is not None for a in args):
            return self.named(code, dtype, args)
        return Val(code, dtype, axes, **known)

    def rounding_of(self, dtype: str) -> str | None:
        """The codec that rounds to `dtype`, for low-precision dtypes."""
        return LOW_PRECISION.get(dtype)
