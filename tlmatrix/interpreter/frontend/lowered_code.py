"""What TileLang's lowered code does with statements that are not in a `T.Parallel`.

Some of them it gives to one thread, and between some it puts barriers: only its passes know. The
same holds for the barriers before the end of a block, where it frees tensor memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.ownership import (
    Fault,
    conjuncts,
    misguarded,
    scalar_accesses,
    without_a_thread,
)
from tlmatrix.interpreter.analysis.repeats import unguarded
from tlmatrix.interpreter.analysis.tensor_memory import early_free, is_freed_early, last_copy
from tlmatrix.interpreter.analysis.threads import ThreadIndex
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.sync.externs import is_modelled

from .descriptors import lowered

if TYPE_CHECKING:
    from collections.abc import Mapping

_AXES = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}
_NAMES = {"tx": 0, "ty": 1, "tz": 2}
"""Of the variables that TileLang makes for the thread index."""
_WARP = 32


class LoweredCode:
    """The functions of a lowered kernel; none of one that TileLang cannot lower."""

    def __init__(self, func: Any, arch: str, configs: Mapping[str, Any]) -> None:
        code = lowered(func, arch, configs)
        self._traced = normalized(read_all(saved(func)), is_modelled)
        functions = code.device.functions.values() if code is not None else ()
        self._kernels = [read_all(saved(function)) for function in functions]
        inferred = code.inferred if code is not None else None
        self._inferred = read_all(saved(inferred)) if inferred is not None else None

    def is_unguarded(self, data: str, line: int) -> bool:
        """Whether several warps store to memory, by its name, at a line of the user's source.

        That is after a read of it, and with no barrier since.
        """
        return any(unguarded(kernel, data, line, _Guards(kernel).warps) for kernel in self._kernels)

    def misplaced(self) -> list[Fault]:
        """Statements that access elements of fragments in threads that do not have them."""
        if self._inferred is None:
            return []
        found = []
        for kernel in self._kernels:
            threads = _launched(kernel)
            found += without_a_thread(self._inferred, math.prod(threads))
            for statement in scalar_accesses(self._traced):
                fault = misguarded(statement, kernel, self._inferred, threads)
                if fault is not None:
                    found.append(fault)
        return list({(f.location, f.buffer): f for f in reversed(found)}.values())[::-1]

    def frees_early(self) -> list[Fault]:
        """The last copy of tensor memory, if the block frees that while other warps may copy."""
        copy = last_copy(self._traced)
        if copy is None:
            return []
        early = any(
            math.prod(_launched(kernel)) > _WARP
            and is_freed_early(kernel, _Guards(kernel).depends_on_thread)
            for kernel in self._kernels
        )
        return [early_free(*copy)] if early else []


def _launched(kernel: ir.Kernel) -> tuple[int, int, int]:
    """The extents of a block."""
    extents = [1, 1, 1]
    for node in walk(kernel.body):
        if isinstance(node, ir.AttrStmt) and node.node in _AXES:
            extents[_AXES[node.node]] = int(node.value.value)
    return extents[0], extents[1], extents[2]


class _Guards:
    """Conditions on the thread index in a lowered kernel."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self._index = ThreadIndex(_launched(kernel))
        for node in walk(kernel.body):
            if isinstance(node, ir.Var) and node.name in _NAMES:
                number = ir.IntImm("int32", _NAMES[node.name])
                call = ir.Call("int32", "tl.launch_thread_idx", (number,), {})
                self._index.define(node, call)

    def depends_on_thread(self, condition: Any) -> bool:
        """Whether a condition mentions the thread index."""
        return self._index.mentions(condition)

    def warps(self, condition: Any) -> int | None:
        """In how many warps a condition holds for a thread; None if that is not known."""
        holds = np.ones(self._index.count, bool)
        for part in conjuncts(condition):
            if self._index.mentions(part):
                values = self._index.evaluate(part, 0, self._index.count)
                if values is None:
                    return None
                holds &= values != 0
        return len(np.unique(np.flatnonzero(holds) // _WARP))
