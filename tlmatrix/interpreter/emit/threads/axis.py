"""The thread axis of a warp role, and the clusters of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.threads import ThreadIndex
from tlmatrix.interpreter.analysis.usage import cluster_dims
from tlmatrix.interpreter.emit.emitter import Agents
from tlmatrix.interpreter.emit.numbers import affine_of
from tlmatrix.interpreter.emit.values import Val, expression, literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Axis, Emitter


# The thread axis of a warp role: values that each thread has for itself ---------------------------

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
        outer = self.left
        mask = self.left = e.mask
        with e.inside(axes=[], rank=0, mask=None), ExitStack() as guard:
            if mask is not None:
                code = mask.code if mask.scalar else f"{mask.code}.any()"
                guard.enter_context(e.w.block(f"if {code}"))
            yield
        self.left = outer

    def with_threads(self, e: Emitter) -> AbstractContextManager[None]:
        """Return to the thread axis for a value of which every thread has its own."""
        assert self.axis is not None
        return e.inside(axes=[self.axis], rank=1, mask=self.left)

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
        code = expression("({} + {})", literal(low, "int32"), iota)
        return Val(code, "int32", iota.axes, affine=affine, lo=low, hi=high - 1)

    def thread_index(self, e: Emitter, number: int) -> Val:
        """threadIdx.x, y or z."""
        x, y, z = self.index.extents
        linear = self.linear_index(e)
        if y == z == 1:
            return linear if number == 0 else literal(0, "int32")
        template = (f"({{}} % {x})", f"({{}} // {x} % {y})", f"({{}} // {x * y})")[number]
        code = expression(template, linear)
        return Val(code, "int32", linear.axes, lo=0, hi=(x, y, z)[number] - 1)

    def active_threads(self, e: Emitter) -> str:
        """Code of how many threads of the role are active."""
        low, high = self.intervals[self.role]
        if e.mask is None:
            return str(high - low)
        if e.mask.scalar:
            return f"{high - low} * {e.mask.code}"
        return f"np.broadcast_to({e.mask.code}, ({high - low},)).sum()"


# Clusters of blocks: which blocks make one, and the rank of a block in it -------------------------

_CLUSTER = "the cluster of a block"


def _indices(e: Emitter) -> list[str]:
    """Code of the block's index along x, y and z."""
    found = ["0", "0", "0"]
    for node in walk(e.kernel.body):
        if isinstance(node, ir.For) and node.thread_tag.startswith("blockIdx."):
            found["xyz".index(node.thread_tag[-1])] = e.vars[node.loop_var].code
    return found


def grid_of_clusters(e: Emitter) -> list[tuple[str, int]]:
    """For each dim of the grid, outermost first, its axis and the blocks of a cluster along it."""
    tags = (n.thread_tag for n in walk(e.kernel.body) if isinstance(n, ir.For))
    axes = [tag[-1] for tag in tags if tag.startswith("blockIdx.")]
    return [(axis, cluster_dims(e.kernel.body)["xyz".index(axis)]) for axis in axes]


def blocks_of_cluster(e: Emitter) -> int:
    """How many blocks a cluster has."""
    return math.prod(cluster_dims(e.kernel.body))


def has_cluster(e: Emitter) -> bool:
    """Whether blocks come in clusters."""
    return blocks_of_cluster(e) > 1


def has_pairs(e: Emitter) -> bool:
    """Whether a product takes the memory of two blocks."""
    return has_cluster(e) and any(
        isinstance(n, ir.Call) and n.annotations.get("use_2cta") for n in walk(e.kernel.body)
    )


def rank_in_cluster(e: Emitter) -> str:
    """Code of the rank of a block in its cluster: x runs fastest."""
    terms, step = [], 1
    for index, extent in zip(_indices(e), cluster_dims(e.kernel.body), strict=True):
        if extent > 1:
            terms.append(f"{index} % {extent} * {step}")
        step *= extent
    return f"({' + '.join(terms)})" if terms else "0"


def cluster_of(e: Emitter) -> str:
    """The name of the block's cluster, which is joined before the block starts."""
    if _CLUSTER not in e.vars:
        extents = cluster_dims(e.kernel.body)
        number = [f"{i} // {n}" for i, n in zip(_indices(e), extents, strict=True)]
        name = e.vars[_CLUSTER] = e.prologue.fresh("cluster")
        e.prologue.line(
            f"{name} = cta.join_cluster(({', '.join(number)}), {blocks_of_cluster(e)}, "
            f"{rank_in_cluster(e)})"
        )
    found: str = e.vars[_CLUSTER]
    return found
