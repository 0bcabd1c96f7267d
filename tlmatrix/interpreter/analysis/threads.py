"""Threads: conditions that cut a block into warp roles, and the order of a loop's iterations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import is_thread_index, launched_threads
from tlmatrix.interpreter.ir.walk import calls, inner_statements, walk

from .expressions import ARITHMETIC, BITS, COMPARISONS, evaluate, is_zero, number
from .usage import is_parallel

# What a kernel does with its thread index: conditions on it cut a block into warp roles -----------
#
# A role is an interval of threads of whole warps that runs the same code. It is found by trying
# every condition that depends on nothing but the thread index for all threads of the block.

_SCOPES = ("shared.barrier", "shared.tmem", "shared.cluster_barrier")


def needs_threads(
    kernel: ir.Kernel, thread_operations: Collection[str], each_thread: Collection[str]
) -> bool:
    """Whether a kernel does something that depends on the thread, or that runs asynchronously.

    Args:
        kernel: the kernel.
        thread_operations: operations that need more than one thread of control, or the thread
            index.
        each_thread: operations that every thread does, outside of parallel loops: an atomic add
            of one value by a block of 128 threads adds it 128 times.
    """
    nodes = list(walk(kernel.body))
    threads = {n.var for n in nodes if isinstance(n, ir.Bind) and is_thread_index(n.value)}
    alone = launched_threads(kernel.body) == (1, 1, 1)
    return (not alone and _each_thread_does(kernel.body, each_thread)) or any(
        node in threads
        if isinstance(node, ir.Var)
        else node.op in thread_operations or _has_barrier(node)
        if isinstance(node, ir.Call)
        else any(b.scope in _SCOPES for b in node.alloc_buffers)
        if isinstance(node, ir.Block)
        else isinstance(node, ir.While) and reads_flags(node)
        for node in nodes
    )


def _each_thread_does(node: ir.Stmt, operations: Collection[str]) -> bool:
    """Whether one of some operations is done outside of parallel loops."""
    inner = inner_statements(node)
    if inner:
        parallel = isinstance(node, ir.For) and is_parallel(node)
        return not parallel and any(_each_thread_does(child, operations) for child in inner)
    return calls(node, *operations)


def _has_barrier(call: ir.Call) -> bool:
    """Whether a matrix product names a barrier at which it arrives."""
    return call.op == "tl.tileop.gemm" and not isinstance(call.args[10], ir.IntImm)


def reads_flags(loop: ir.While) -> bool:
    """Whether a while loop reads memory atomically, so that other agents must run for its end."""
    return calls(loop, "tl.atomic_load_elem_op")


class ThreadIndex:
    """Evaluates what depends on the thread index alone, for an interval of threads."""

    def __init__(self, extents: tuple[int, int, int]) -> None:
        self.extents = extents
        self.count = extents[0] * extents[1] * extents[2]
        self._axes: dict[ir.Var, int] = {}
        self._bound: dict[ir.Var, ir.Expr] = {}

    def define(self, var: ir.Var, value: ir.Expr) -> bool:
        """Note what a variable is bound to; False if it does not depend on the thread alone."""
        if is_thread_index(value):
            assert isinstance(value, ir.Call)
            self._axes[var] = int(value.args[0].value)
            return True
        if self.mentions(value) and self.evaluate(value, 0, self.count) is not None:
            self._bound[var] = value
            return True
        return False

    def is_axis(self, var: Any) -> bool:
        """Whether a variable is a thread index itself."""
        return var in self._axes

    def axis_of(self, var: ir.Var) -> int:
        """Which thread index a variable is: 0 for x, 1 for y, 2 for z."""
        return self._axes[var]

    def mentions(self, node: Any) -> bool:
        """Whether an expression or statement names the thread."""
        return any(
            child in self._axes or child in self._bound
            if isinstance(child, ir.Var)
            else isinstance(child, ir.Call) and child.op.startswith(("tl.get_warp", "tl.get_lane"))
            for child in walk(node)
        )

    def evaluate(self, node: Any, low: int, high: int) -> Any:
        """The values of an expression in the threads `low` to `high - 1`; None if not known."""
        if isinstance(node, ir.IntImm):
            return np.full(high - low, node.value)
        if isinstance(node, ir.Var):
            if node in self._axes:
                linear = np.arange(low, high)
                x, y, _ = self.extents
                return (linear % x, linear // x % y, linear // (x * y))[self._axes[node]]
            bound = self._bound.get(node)
            return None if bound is None else self.evaluate(bound, low, high)
        if isinstance(node, ir.Binary):
            return self._binary(node, low, high)
        if isinstance(node, ir.Not):
            a = self.evaluate(node.a, low, high)
            return None if a is None else np.logical_not(a)
        if isinstance(node, ir.Cast) and node.dtype.startswith(("int", "uint", "bool")):
            return self.evaluate(node.value, low, high)
        return self._call(node, low, high) if isinstance(node, ir.Call) else None

    def _binary(self, node: ir.Binary, low: int, high: int) -> Any:
        a = self.evaluate(node.a, low, high)
        b = None if a is None else self.evaluate(node.b, low, high)
        divides = isinstance(node, (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod))
        if b is None or (divides and not b.all()):
            return None
        if isinstance(node, ir.Compare):
            return COMPARISONS[node.symbol](a, b)
        if isinstance(node, (ir.And, ir.Or)):
            return (np.logical_and if isinstance(node, ir.And) else np.logical_or)(a, b)
        return ARITHMETIC[type(node)](a, b)

    def _call(self, node: ir.Call, low: int, high: int) -> Any:
        if node.op in BITS:
            a, b = (self.evaluate(arg, low, high) for arg in node.args[:2])
            return None if a is None or b is None else BITS[node.op](a, b)
        linear = np.arange(low, high)
        sizes = [a.value for a in node.args if isinstance(a, ir.IntImm)]
        if len(sizes) != len(node.args):
            return None
        size = sizes[0] if sizes else WARP
        if node.op == "tl.get_lane_idx":
            return linear % size
        if node.op in ("tl.get_warp_idx", "tl.get_warp_idx_sync"):
            return linear // size
        if node.op == "tl.get_warp_group_idx":
            return linear // (size * (sizes[1] if sizes[1:] else 4))
        if node.op == "tl.tl_shuffle_elect":
            return linear % (sizes[0] or self.count) == 0
        return None

    def decide(self, node: Any, low: int, high: int) -> bool | None:
        """Whether a condition holds in all threads of an interval (True), in none, or neither."""
        if isinstance(node, (ir.And, ir.Or)):
            sides = [self.decide(node.a, low, high), self.decide(node.b, low, high)]
            decisive = isinstance(node, ir.Or)
            if decisive in sides:
                return decisive
            if None not in sides:
                return not decisive
        elif isinstance(node, ir.Not):
            inner = self.decide(node.a, low, high)
            return None if inner is None else not inner
        if not self.mentions(node) and not isinstance(node, ir.Call):
            return None
        values = self.evaluate(node, low, high)
        if values is None or not len(values):
            return None
        if values.all():
            return True
        return False if not values.any() else None

    def cuts(self, conditions: Sequence[Any]) -> list[int]:
        """Where conditions begin or cease to hold, if that is between warps only."""
        found: set[int] = set()
        for condition in conditions:
            for part in comparisons(condition):
                values = self.evaluate(part, 0, self.count) if self.mentions(part) else None
                if values is None:
                    continue
                changes = np.flatnonzero(values[1:] != values[:-1]) + 1
                if (changes % WARP == 0).all():
                    found.update(int(c) for c in changes)
        return sorted(found)


def comparisons(condition: Any) -> list[Any]:
    """The comparisons that a condition is made of."""
    if isinstance(condition, (ir.And, ir.Or)):
        return [*comparisons(condition.a), *comparisons(condition.b)]
    return comparisons(condition.a) if isinstance(condition, ir.Not) else [condition]


# Parallel loops in which several iterations of a thread write one element -------------------------
#
# `acc[i, j // 4] = T.max(acc[i, j // 4], x[i, j])` is a race between iterations, unless all that
# write an element belong to the thread that has it: then they follow each other. Which thread runs
# which iteration is up to TileLang's layout inference, which is run where the author annotated
# layouts of fragments.

# More iterations than this a loop of tiles does not have.
_MOST = 1 << 20


@dataclass(frozen=True)
class ThreadOrder:
    """A nest of parallel loops as its threads run it.

    Attributes:
        variables: of the loops, outermost first.
        extents: of the loops.
        body: of the innermost loop.
        thread: code of the thread of an iteration, over the names `i0`, `i1`, ...
        position: the same of its position among those of its thread.
        threads: how many threads run iterations.
    """

    variables: tuple[ir.Var, ...]
    extents: tuple[int, ...]
    body: ir.Stmt
    thread: str
    position: str
    threads: int


@dataclass(frozen=True)
class InferredLayouts:
    """The layouts that TileLang infers of a kernel.

    Attributes:
        loops: of nests of parallel loops, by the outermost variable.
        fragments: by data.
        shapes: the output shape of each layout, as TileLang computes it.
    """

    loops: Mapping[ir.Var, ir.Layout]
    fragments: Mapping[ir.Var, ir.Layout]
    shapes: Mapping[ir.Layout, tuple[int, ...]]


def annotates_fragments(kernel: ir.Kernel) -> bool:
    """Whether the author states which thread has which element of a fragment."""
    for node in walk(kernel.body):
        if isinstance(node, ir.Block) and "layout_map" in node.annotations:
            annotated = node.annotations["layout_map"]
            if any(b.scope == "local.fragment" and b.data in annotated for b in node.alloc_buffers):
                return True
    return False


def thread_order(loop: ir.For, layouts: InferredLayouts | None) -> ThreadOrder | None:
    """How threads run a parallel loop of which some iterations write one element of a fragment.

    None where no two iterations do, or where they are not known to be of one thread.
    """
    nest = _nest(loop)
    if nest is None or layouts is None:
        return None
    variables, extents, body = nest
    values = dict(zip(variables, np.indices(extents, sparse=True), strict=True))
    bound = _bind(body, values)
    shared = [
        (store.buffer, elements)
        for store in walk(body)
        if isinstance(store, ir.BufferStore)
        and store.buffer.scope == "local.fragment"
        and (elements := _elements(store, values, [*variables, *bound], extents)) is not None
        and len(np.unique(elements)) < elements.size
    ]
    layout = layouts.loops.get(variables[0]) if shared else None
    if layout is None or len(layout.shape) != len(extents):
        return None
    try:
        runs = threads_of(layout, extents)
        for buffer, elements in shared:
            owner = layouts.fragments.get(buffer.data)
            if owner is None or not _is_owned(elements, runs, owner, buffer):
                return None
        names = {v: f"i{k}" for k, v in enumerate(placeholders(layout))}
        positions = [_code(index, names) for index in layout.index]
        thread = _code(layout.thread, names)
    except Unsupported:
        return None
    position = positions[0]
    for extent, code in zip(layouts.shapes[layout][1:], positions[1:], strict=True):
        position = f"({position}) * {extent} + {code}"
    return ThreadOrder(variables, extents, body, thread, position, len(np.unique(runs[0])))


def _nest(node: Any) -> tuple[tuple[ir.Var, ...], tuple[int, ...], ir.Stmt] | None:
    """Variables, extents and body of loops of which each holds nothing but the next."""
    variables: list[ir.Var] = []
    extents: list[int] = []
    while isinstance(node, ir.For) and node.kind == ir.PARALLEL:
        if not is_zero(node.min) or number(node.extent) is None:
            return None
        variables.append(node.loop_var)
        extents.append(int(number(node.extent)))
        node = node.body
    if math.prod(extents) > _MOST:
        return None
    for inner in walk(node):
        if isinstance(inner, ir.For) and inner.kind == ir.PARALLEL:
            return None
        # Memory that each iteration has for itself is not run by thread.
        if isinstance(inner, ir.BufferStore) and inner.buffer.scope in ("local", "local.var"):
            return None
    return tuple(variables), tuple(extents), node


def _bind(body: ir.Stmt, values: dict[Any, Any]) -> list[ir.Var]:
    """The names that a loop's body binds; what follows from the loops' variables gets its value."""
    bound = [node for node in walk(body) if isinstance(node, ir.Bind)]
    for node in bound:
        found = _known(node.value, values)
        if found is not None:
            values[node.var] = found
    return [node.var for node in bound]


def _elements(
    store: ir.BufferStore,
    values: Mapping[Any, Any],
    names: Sequence[ir.Var],
    extents: tuple[int, ...],
) -> Any:
    """The number of the element that each iteration stores to; None where it is not known.

    `names` are those whose values differ between iterations.
    """
    element: Any = 0
    for index, extent in zip(store.indices, store.buffer.shape, strict=True):
        at = _known(index, values)
        if at is None and not any(node in names for node in walk(index)):
            at = 0  # the same for all of them
        if at is None or number(extent) is None:
            return None
        element = element * int(number(extent)) + at
    return np.broadcast_to(element, extents)


def _known(index: Any, values: Mapping[Any, Any]) -> Any:
    try:
        return evaluate(index, values)
    except Unsupported:
        return None


def placeholders(layout: ir.Layout) -> list[str]:
    """The names of the variables of a layout's indices: `_i`, `_j`, ..."""
    return ["_" + chr(ord("i") + k) for k in range(len(layout.shape))]


def threads_of(layout: ir.Layout, shape: Sequence[int]) -> Any:
    """The threads that have each element, or run each iteration: [copies, *shape], sorted."""
    grid = np.indices((layout.replicate, *shape), sparse=True)
    values: dict[Any, Any] = dict(zip(placeholders(layout), grid[1:], strict=True))
    # The copy's number is another variable in the expression than among the layout's.
    values["_rep"] = values["rep"] = grid[0]
    found = np.broadcast_to(evaluate(layout.thread, values), (layout.replicate, *shape))
    return np.sort(found, axis=0)


def _is_owned(elements: Any, runs: Any, layout: ir.Layout, buffer: ir.Buffer) -> bool:
    """Whether each iteration is run by all threads that have a copy of the element it writes."""
    shape = [int(number(n)) for n in buffer.shape]
    if elements.size and (elements.min() < 0 or elements.max() >= math.prod(shape)):
        return False
    owners = threads_of(layout, shape).reshape(layout.replicate, -1)[:, elements.reshape(-1)]
    done = runs.reshape(runs.shape[0], -1)
    return owners.shape == done.shape and bool((owners == done).all())


def _code(node: Any, names: Mapping[Any, str]) -> str:
    """An index expression as code, over arrays; of the first copy."""
    if isinstance(node, ir.IntImm):
        return str(node.value)
    if isinstance(node, ir.Var):
        return names.get(node.name, "0")
    if type(node) in ARITHMETIC:
        function = ARITHMETIC[type(node)].__name__
        return f"np.{function}({_code(node.a, names)}, {_code(node.b, names)})"
    raise Unsupported(f"the interpreter does not model {type(node).__name__} in a layout")
