"""What a kernel does with its thread index: conditions on it cut a block into warp roles.

A role is an interval of threads of whole warps that runs the same code. It is found by trying
every condition that depends on nothing but the thread index for all threads of the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import is_thread_index, launched_threads
from tlmatrix.interpreter.ir.walk import calls, inner_statements, walk

from .evaluate import ARITHMETIC, BITS, COMPARISONS
from .loops import is_parallel

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_WARP = 32
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
        size = sizes[0] if sizes else _WARP
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
                if (changes % _WARP == 0).all():
                    found.update(int(c) for c in changes)
        return sorted(found)


def comparisons(condition: Any) -> list[Any]:
    """The comparisons that a condition is made of."""
    if isinstance(condition, (ir.And, ir.Or)):
        return [*comparisons(condition.a), *comparisons(condition.b)]
    return comparisons(condition.a) if isinstance(condition, ir.Not) else [condition]
