"""What TileLang's lowered code does with a kernel, the memory that it needs, and runs of it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.ownership import (
    Fault,
    SetEarly,
    conjuncts,
    early_free,
    is_freed_early,
    last_copy,
    misguarded,
    scalar_accesses,
    without_a_thread,
)
from tlmatrix.interpreter.analysis.repeats import unguarded
from tlmatrix.interpreter.analysis.shared import shared_memory, tensor_memory
from tlmatrix.interpreter.analysis.threads import ThreadIndex
from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.gpu import WARP, shared_memory_per_block
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.lowered.execution import run
from tlmatrix.interpreter.lowered.lowering import LoweredKernel, lowered_kernel
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import Report, ReportSet, source_line
from tlmatrix.interpreter.sync.externs import is_modelled

from .lowering_check import Launch, report
from .programs import kept, lowered, lowered_key, written_at

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import MemoryNeed

    from .session import Session


# A kernel that runs as TileLang lowers it: its device functions, thread by thread -----------------


class DeviceCode:
    """The lowered code of a kernel for one architecture, to be run on the CPU."""

    def __init__(self, prim_func: Any, arch: str, configs: Mapping[str, Any]) -> None:
        """Lower nothing yet."""
        self._func, self._arch, self._configs = prim_func, arch, configs
        self.name = str(prim_func.attrs["global_symbol"])
        self._compared = False  # bisecting takes seconds: once a kernel

    @cached_property
    def code(self) -> LoweredKernel:
        """Its programs; lowering takes seconds and is kept on disk.

        Raises:
            Unsupported: TileLang cannot lower it, or an operation is not modelled.
        """
        func, about = self._func, (self._arch, self._configs)
        found = kept(
            lambda: lowered_key(saved(func), *about) + "-device",
            LoweredKernel,
            lambda: lowered_kernel(lowered(func, *about)),
        )
        _dump(found)
        return found

    @property
    def by_order(self) -> bool:
        """Whether values may depend on the order of threads: source and code may differ then."""
        return any(each.by_order for each in self.code.programs.values())

    def run(self, values: Sequence[Any], session: Session) -> list[Report]:
        """Run a launch; returns what the session's sanitizers found.

        Raises:
            Unsupported: an operation is not modelled.
            InterpreterError: for what has no defined result.
        """
        reports = ReportSet()
        watching = Watching(session.sanitizers, reports, self.name)
        try:
            run(self.code, values, watching)
        except (Unsupported, InterpreterError) as error:
            where = f"\n  in kernel {self.name}, lowered for {self._arch}, {written_at(self._func)}"
            raise type(error)(f"{error}{where}") from error
        return reports.reports()

    def compare(
        self,
        names: Sequence[str],
        before: Sequence[Any],
        source: Sequence[Any],
        lowered: Sequence[Any],
    ) -> list[Report]:
        """What `lowering_check` finds about a launch: arguments before, and after either run."""
        if self._compared:
            return []
        launch = Launch(self._func, self._arch, self._configs, names, before, source)
        found = report(launch, lowered)
        self._compared = found is not None
        return [found] if found is not None else []


def _dump(code: LoweredKernel) -> None:
    """Write the sources to the folder `$TLMATRIX_DUMP`."""
    folder = os.environ.get("TLMATRIX_DUMP")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, program in code.programs.items():
            (Path(folder) / f"{name}_lowered.py").write_text(program.source)


# What lowered code does with a kernel -------------------------------------------------------------


# The parameters of which host code makes TMA descriptors ------------------------------------------
#
# CUDA has no descriptor of an empty tensor, and host code makes all descriptors of a kernel before
# its first launch. Which copies become TMA is decided by TileLang's passes, by layouts, strides,
# pipelines and options; so they are asked, and only for a kernel that is called with an empty
# tensor.

_FIRST = 90
"""The first architecture that has TMA."""


def may_be_described(func: Any, arch: str) -> frozenset[int]:
    """Positions of the parameters that a tile operation moves from or to shared memory."""
    from tilelang import tvm

    known = re.match(r"sm_(\d+)", arch)
    if known is None or int(known[1]) < _FIRST:
        return frozenset()
    moved: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Call) and str(getattr(node.op, "name", "")).startswith(
            "tl.tileop."
        ):
            if (node.annotations or {}).get("disable_tma"):
                return
            buffers = [buffer for buffer in map(_buffer, node.args) if buffer is not None]
            if any(str(buffer.scope()).startswith("shared") for buffer in buffers):
                moved.extend(buffer.data for buffer in buffers)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return positions(func, moved)


def _buffer(argument: Any) -> Any:
    """The buffer that an argument of a tile operation is a region of."""
    inner = getattr(argument, "args", None)
    return getattr(inner[0], "buffer", None) if inner else None


def positions(func: Any, bases: list[Any]) -> frozenset[int]:
    """The parameters that begin where one of the variables points to."""
    buffers = func.buffer_map
    return frozenset(
        position
        for position, parameter in enumerate(func.params)
        if parameter in buffers and any(buffers[parameter].data.same_as(base) for base in bases)
    )


# What TileLang's lowered code does with statements that are not in a `T.Parallel` -----------------
#
# Some of them it gives to one thread, and between some it puts barriers: only its passes know. The
# same holds for the barriers before the end of a block, where it frees tensor memory.

_AXES = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}


class LoweredCode:
    """The functions of a lowered kernel; none of one that TileLang cannot lower."""

    def __init__(self, func: Any, arch: str, configs: Mapping[str, Any]) -> None:
        self._traced = normalized(read_all(saved(func)), is_modelled)
        self._kernels, self._inferred = [], None
        with suppress(Unsupported):
            code = lowered(func, arch, configs)
            self._kernels = [read_all(saved(each)) for each in code.device.functions.values()]
            if code.inferred is not None:
                self._inferred = read_all(saved(code.inferred))

    def is_unordered(self, data: str, line: int, *, several: bool) -> bool:
        """Whether several warps store to memory, by its name, at a line of the user's source.

        That is after a read of it, and with no barrier since. With `several` it is known that
        several warps do, whatever the conditions of the store are.
        """
        return any(
            unguarded(kernel, data, line, (lambda _: 2) if several else _Guards(kernel).warps)
            for kernel in self._kernels
        )

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

    def sets_early(self) -> list[Fault]:
        """Stores of several warps that nothing orders before the flag that one of them sets."""
        return [
            fault
            for kernel in self._kernels
            if math.prod(_launched(kernel)) > WARP
            for fault in SetEarly(kernel, _Guards(kernel).warps).faults
        ]

    def frees_early(self) -> list[Fault]:
        """The last copy of tensor memory, if the block frees that while other warps may copy."""
        copy = last_copy(self._traced)
        if copy is None:
            return []
        early = any(
            math.prod(_launched(kernel)) > WARP
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
            if isinstance(node, ir.AttrStmt) and node.node in _AXES:
                number = ir.IntImm("int32", _AXES[node.node])
                call = ir.Call("int32", "tl.launch_thread_idx", (number,), {})
                self._index.define(node.node.var, call)

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
        return len(np.unique(np.flatnonzero(holds) // WARP))


# What a kernel needs of a block's memory, and what no GPU of an architecture has ------------------

_TENSOR_COLUMNS = 512
"""Columns of tensor memory that a multiprocessor has (PTX ISA, "Tensor Memory")."""


def memory_faults(func: Any, arch: str) -> list[Report]:
    """Reports of `budget` about a traced PrimFunc, which is neither generated nor run."""
    kernel = normalized(read_all(saved(func)), is_modelled)
    return over_budget(kernel.name, shared_memory(kernel), tensor_memory(kernel), arch)


def over_budget(
    name: str, shared: MemoryNeed | None, tensor: MemoryNeed | None, arch: str
) -> list[Report]:
    """Reports about memory that the kernel `name` needs and no block can have."""
    found = []
    limit = shared_memory_per_block(arch)
    if shared is not None and shared.size > limit:
        message = (
            f"the kernel needs about {shared.size} bytes of shared memory at once, {arch} "
            f"has {limit}: {', '.join(shared.buffers)}"
        )
        found.append(_report(name, shared, message))
    if tensor is not None and tensor.size > _TENSOR_COLUMNS:
        message = (
            f"the kernel needs {tensor.size} columns of tensor memory, there are "
            f"{_TENSOR_COLUMNS}: {', '.join(tensor.buffers)}"
        )
        found.append(_report(name, tensor, message))
    return found


def _report(name: str, need: MemoryNeed, message: str) -> Report:
    return Report("budget", name, *source_line(need.location), need.largest, (), None, message)
