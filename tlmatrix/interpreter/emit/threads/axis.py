"""The thread axis of a warp role: values that each thread has for itself."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.threads import ThreadIndex
from tlmatrix.interpreter.emit.agents import Agents
from tlmatrix.interpreter.emit.integers import affine_of
from tlmatrix.interpreter.emit.values import Val, literal
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.interpreter.emit.emitter import Axis, Emitter

DEFAULT_THREADS = (128, 1, 1)
"""What TileLang launches where a kernel does not say."""
_FOLDED = (ir.Var, ir.Binary, ir.Not, ir.Cast, ir.Call)


class NeedsThreadAxis(Exception):  # noqa: N818  # caught where the role is emitted again
    """The threads of a role compute different things."""


class ThreadAxis(Agents):
    """The threads of the role that is being emitted, and the axis over them.

    Attributes:
        index: evaluates expressions of the thread index.
        intervals: the first thread of each role, and the one after its last.
        role: the number of the role that is being emitted.
        axis: the thread axis of the role, if it has one.
        left: the mask of the threads that do together what is being emitted; None for all.
        thread_vars: variables of which threads have different values.
        in_block: whether the body of a block is being emitted.
    """

    def __init__(self) -> None:
        self.index = ThreadIndex(DEFAULT_THREADS)
        self.intervals: list[tuple[int, int]] = []
        self.role = 0
        self.axis: Axis | None = None
        self.left: Val | None = None
        self.thread_vars: set[ir.Var] = set()
        self.in_block = False

    def in_threads(self, e: Emitter) -> bool:
        """Whether statements are run for every thread of the role."""
        return any(axis is self.axis for axis in e.axes)

    @contextmanager
    def without_threads(self, e: Emitter) -> Iterator[None]:
        """Leave the thread axis for something that all threads of the role do together."""
        if not self.in_threads(e):
            yield
            return
        saved, outer = (e.axes, e.rank, e.mask), self.left
        e.axes, e.rank, e.mask = [], 0, None
        mask = self.left = saved[2]
        if mask is None:
            yield
        else:
            with e.w.block(f"if {mask.code if mask.scalar else f'{mask.code}.any()'}"):
                yield
        (e.axes, e.rank, e.mask), self.left = saved, outer

    @contextmanager
    def with_threads(self, e: Emitter) -> Iterator[None]:
        """Return to the thread axis for a value of which every thread has its own."""
        assert self.axis is not None
        saved = e.axes, e.rank, e.mask
        e.axes, e.rank, e.mask = [self.axis], 1, self.left
        yield
        e.axes, e.rank, e.mask = saved

    def uniform(self, e: Emitter, value: Val, what: str) -> Val:
        """A value that all threads must agree on, checked when the program runs."""
        if not self.in_threads(e):
            return super().uniform(e, value, what)
        name = e.temp("same")
        e.w.line(f"{name} = uniform({value.code}, {e.mask_code}, {what!r})")
        return Val(name, value.dtype, lo=value.lo, hi=value.hi)

    def varies(self, var: ir.Var) -> None:
        """Note that threads have different values of a variable."""
        self.thread_vars.add(var)

    def uniform_of_threads(self, e: Emitter, value: Callable[[], Val], what: str) -> Val:
        """A value of each thread, used where the threads do something together."""
        with self.with_threads(e):
            return self.uniform(e, value(), what)

    def fold(self, e: Emitter, node: Any) -> Val | None:
        """The value of an expression of the thread index that is the same in the whole role."""
        del e
        if not self.in_block or not isinstance(node, _FOLDED):
            return None
        elects = isinstance(node, ir.Call) and node.op == "tl.tl_shuffle_elect"
        if elects or self.index.mentions(node):
            values = self.index.evaluate(node, *self.intervals[self.role])
            if values is not None and len(values) and (values == values[0]).all():
                return literal(values[0], node.dtype)
        return None

    def thread_axis(self, e: Emitter, what: str) -> Axis:
        """The thread axis; the role is emitted again with one if it has none.

        Raises:
            Unsupported: inside of a parallel loop or tile operation.
        """
        if self.axis is None:
            raise NeedsThreadAxis
        if not self.in_threads(e):
            raise e.refuse(f"{what} inside T.Parallel or a tile operation")
        return self.axis

    def linear_index(self, e: Emitter) -> Val:
        """The thread's number in the block."""
        iota = self.thread_axis(e, "the thread index (threadIdx)").iota
        low, high = self.intervals[self.role]
        if low == 0:
            return iota
        affine = affine_of("+", literal(low, "int32"), iota)
        code = f"({low} + {iota.code})"
        return Val(code, "int32", iota.axes, affine=affine, lo=low, hi=high - 1)

    def thread_index(self, e: Emitter, number: int) -> Val:
        """threadIdx.x, y or z."""
        x, y, z = self.index.extents
        linear = self.linear_index(e)
        if y == z == 1:
            return linear if number == 0 else literal(0, "int32")
        code = (
            f"({linear.code} % {x})",
            f"({linear.code} // {x} % {y})",
            f"({linear.code} // {x * y})",
        )[number]
        return Val(code, "int32", linear.axes, lo=0, hi=(x, y, z)[number] - 1)

    def active_threads(self, e: Emitter) -> str:
        """Code of how many threads of the role are active."""
        low, high = self.intervals[self.role]
        if e.mask is None:
            return str(high - low)
        if e.mask.scalar:
            return f"{high - low} * {e.mask.code}"
        return f"np.broadcast_to({e.mask.code}, ({high - low},)).sum()"
