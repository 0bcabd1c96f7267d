"""What a kernel does with its thread index: conditions on it cut a block into roles.

A role is an interval of threads of whole warps that runs the same code. It is found by trying
every condition that depends on nothing but the thread index for all threads of the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tlmatrix.interpreter.indexing import ARITHMETIC, BITS

__all__ = ["ThreadIndex", "needs_roles"]

_WARP = 32
# Operations whose meaning needs more than one thread of control, or the thread index.
_CALLS = frozenset(
    {
        "tl.mbarrier_wait_parity",
        "tirx.ptx_arrive_barrier",
        "tirx.ptx_arrive_barrier_expect_tx",
        "tl.mbarrier_expect_tx",
        "tl.tileop.tma_copy",
        "tl.tileop.wgmma_gemm",
        "tl.tileop.tcgen05_gemm",
        "tl.tileop.async_copy",
        "tl.ptx_cp_async",
        "tl.ptx_cp_async_barrier_noinc",
        "tl.wait_wgmma",
        "tl.tma_store_arrive",
        "tl.tma_store_wait",
        "tirx.ptx_wait_group",
        "tirx.ptx_commit_group",
        "tl.tcgen05_mma_arrive",
        "tl.named_barrier_arrive",
        "tl.tl_shuffle_elect",
        "tl.shfl_xor_sync",
        "tl.shfl_down_sync",
        "tl.shfl_up_sync",
        "tl.shfl_sync",
        "tirx.tvm_warp_shuffle",
        "tirx.tvm_warp_shuffle_up",
        "tirx.tvm_warp_shuffle_down",
        "tirx.tvm_warp_activemask",
        "tirx.tvm_thread_allreduce",
        "tl.match_any_sync",
        "tl.match_all_sync",
        "tl.any_sync",
        "tl.all_sync",
        "tl.ballot_sync",
        "tl.ballot",
        "tl.activemask",
        "tl.syncthreads_count",
        "tl.syncthreads_and",
        "tl.syncthreads_or",
        "tl.warp_reduce_sum",
        "tl.warp_reduce_max",
        "tl.warp_reduce_min",
        "tl.warp_reduce_bitand",
        "tl.warp_reduce_bitor",
        "tl.ptx_ldmatrix",
        "tirx.ptx_mma",
        "tl.sync_grid",
        "tl.get_lane_idx",
        "tl.get_warp_idx",
        "tl.get_warp_idx_sync",
        "tl.get_warp_group_idx",
    }
)
_SCOPES = ("shared.barrier", "shared.tmem", "shared.cluster_barrier")
_ARITHMETIC: dict[str, Any] = {
    **ARITHMETIC,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", call.op))


def needs_roles(func: Any) -> bool:
    """Whether a kernel does something that depends on the thread, or that runs asynchronously."""
    from tilelang import tvm

    threads: set[Any] = set()
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.Call):
            found = found or _name(node) in _CALLS
            if _name(node) == "tl.tileop.gemm" and type(node.args[10]).__name__ != "IntImm":
                found = True
        elif isinstance(node, tvm.tirx.Var):
            found = found or node in threads
        elif isinstance(node, tvm.tirx.SBlock):
            found = found or any(str(b.scope()) in _SCOPES for b in node.alloc_buffers)
        elif isinstance(node, tvm.tirx.While):
            found = found or _reads_flags(node)

    def bind(node: Any) -> None:
        if type(node).__name__ == "Bind" and _is_thread(node.value):
            threads.add(node.var)

    tvm.tirx.stmt_functor.post_order_visit(func.body, bind)
    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def _is_thread(value: Any) -> bool:
    return type(value).__name__ == "Call" and _name(value) == "tl.launch_thread_idx"


def _reads_flags(loop: Any) -> bool:
    """Whether a while loop reads memory atomically, so that others must run for it to end."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or (
            isinstance(node, tvm.tirx.Call) and _name(node) == "tl.atomic_load_elem_op"
        )

    tvm.tirx.stmt_functor.post_order_visit(loop, visit)
    return found


class ThreadIndex:
    """Evaluates what depends on the thread index alone, for an interval of threads."""

    def __init__(self, extents: tuple[int, int, int]) -> None:
        self.extents = extents
        self.count = extents[0] * extents[1] * extents[2]
        self._axes: dict[Any, int] = {}
        self._bound: dict[Any, Any] = {}

    def define(self, var: Any, value: Any) -> bool:
        """Note what a variable is bound to; False if it does not depend on the thread alone."""
        if _is_thread(value):
            self._axes[var] = int(value.args[0].value)
            return True
        if self.mentions(value) and self.evaluate(value, 0, self.count) is not None:
            self._bound[var] = value
            return True
        return False

    def is_axis(self, var: Any) -> bool:
        """Whether a variable is a thread index itself."""
        return var in self._axes

    def axis_of(self, var: Any) -> int:
        """Which thread index a variable is: 0 for x, 1 for y, 2 for z."""
        return self._axes[var]

    def mentions(self, node: Any) -> bool:
        """Whether an expression has to do with the thread."""
        from tilelang import tvm

        found = False

        def visit(child: Any) -> None:
            nonlocal found
            if isinstance(child, tvm.tirx.Var):
                found = found or child in self._axes or child in self._bound
            elif isinstance(child, tvm.tirx.Call):
                found = found or _name(child).startswith(("tl.get_warp", "tl.get_lane"))

        tvm.tirx.stmt_functor.post_order_visit(node, visit)
        return found

    def axis(self, number: int, low: int, high: int) -> Any:
        """A thread index of the threads from `low` to below `high`."""
        linear = np.arange(low, high)
        x, y, _ = self.extents
        return (linear % x, linear // x % y, linear // (x * y))[number]

    def evaluate(self, node: Any, low: int, high: int) -> Any:
        """The values of an expression in the threads of an interval; None if not known."""
        kind = type(node).__name__
        if kind == "IntImm":
            return np.full(high - low, int(node.value))
        if kind in ("Var", "SizeVar"):
            if node in self._axes:
                return self.axis(self._axes[node], low, high)
            bound = self._bound.get(node)
            return None if bound is None else self.evaluate(bound, low, high)
        if kind in _ARITHMETIC:
            a = self.evaluate(node.a, low, high)
            b = None if a is None else self.evaluate(node.b, low, high)
            if b is None or (kind in ("FloorDiv", "FloorMod", "Div", "Mod") and not b.all()):
                return None
            return _ARITHMETIC[kind](a, b)
        if kind == "Not":
            a = self.evaluate(node.a, low, high)
            return None if a is None else np.logical_not(a)
        if kind == "Cast" and str(node.dtype).startswith(("int", "uint", "bool")):
            return self.evaluate(node.value, low, high)
        return self._call(node, low, high) if kind == "Call" else None

    def _call(self, node: Any, low: int, high: int) -> Any:
        name = _name(node)
        if name in BITS:
            a = self.evaluate(node.args[0], low, high)
            b = self.evaluate(node.args[1], low, high)
            return None if a is None or b is None else BITS[name](a, b)
        linear = np.arange(low, high)
        sizes = [int(a.value) for a in node.args if type(a).__name__ == "IntImm"]
        if len(sizes) != len(node.args):
            return None
        if name == "tl.get_lane_idx":
            return linear % (sizes[0] if sizes else _WARP)
        if name in ("tl.get_warp_idx", "tl.get_warp_idx_sync"):
            return linear // (sizes[0] if sizes else _WARP)
        if name == "tl.get_warp_group_idx":
            return linear // ((sizes[0] if sizes else _WARP) * (sizes[1] if sizes[1:] else 4))
        if name == "tl.tl_shuffle_elect":
            return linear % (sizes[0] or self.count) == 0
        return None

    def decide(self, node: Any, low: int, high: int) -> bool | None:
        """Whether a condition holds in all threads of an interval (True), in none, or neither."""
        kind = type(node).__name__
        if kind in ("And", "Or"):
            sides = [self.decide(node.a, low, high), self.decide(node.b, low, high)]
            decisive = kind == "Or"
            if decisive in sides:
                return decisive
            if None not in sides:
                return not decisive
        elif kind == "Not":
            inner = self.decide(node.a, low, high)
            return None if inner is None else not inner
        if not self.mentions(node) and kind != "Call":
            return None
        values = self.evaluate(node, low, high)
        if values is None or not len(values):
            return None
        if values.all():
            return True
        return False if not values.any() else None

    def cuts(self, conditions: list[Any]) -> list[int]:
        """Where conditions begin or cease to hold, if that is between warps only."""
        found: set[int] = set()
        for condition in conditions:
            for part in _parts(condition):
                values = self.evaluate(part, 0, self.count) if self.mentions(part) else None
                if values is None:
                    continue
                changes = np.flatnonzero(values[1:] != values[:-1]) + 1
                if (changes % _WARP == 0).all():
                    found.update(int(c) for c in changes)
        return sorted(found)


def _parts(condition: Any) -> list[Any]:
    """The comparisons of a condition."""
    if type(condition).__name__ in ("And", "Or"):
        return [*_parts(condition.a), *_parts(condition.b)]
    if type(condition).__name__ == "Not":
        return _parts(condition.a)
    return [condition]
