"""Shared memory: where TileLang puts barriers and fences, and how much a kernel needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, walk
from tlmatrix.interpreter.program import MemoryNeed

from .expressions import FAR, Interval, interval, number

# Which shared memory statements access, so that a barrier comes where TileLang puts one -----------
#
# TileLang puts a barrier between two statements that access the same elements, one of them to
# write; it looks at the ranges of indices (`src/transform/thread_storage_sync.cc`), so that two
# halves of one buffer need none. Asynchronous copies count as well, but not two of them that write:
# so roles whose branches follow each other have a barrier of all threads between them.

Box = tuple[Interval | None, ...]
Access = Literal["read", "write", "copy"]
"""`copy` is the write of an asynchronous copy."""


@dataclass
class SharedAccesses:
    """Accesses of shared memory.

    Attributes:
        boxes: of each buffer, the elements accessed and how: the first and last index of each
            dimension, or None where that is not known.
    """

    boxes: dict[ir.Buffer, dict[tuple[Box, Access], None]] = field(default_factory=dict)

    def add(self, buffer: ir.Buffer, box: Box, access: Access) -> None:
        """Add an access."""
        self.boxes.setdefault(buffer, {})[box, access] = None

    def include(self, other: SharedAccesses) -> None:
        """Add all of another's accesses."""
        for buffer, boxes in other.boxes.items():
            self.boxes.setdefault(buffer, {}).update(boxes)


def conflict(earlier: SharedAccesses, later: SharedAccesses) -> bool:
    """Whether elements may be accessed in both and written in one."""
    return any(
        {access, other} not in ({"read"}, {"copy"}) and _overlap(box, before)
        for buffer, boxes in later.boxes.items()
        for box, access in boxes
        for before, other in earlier.boxes.get(buffer, ())
    )


def _overlap(a: Box, b: Box) -> bool:
    return all(
        x is None or y is None or (x[0] <= y[1] and y[0] <= x[1]) for x, y in zip(a, b, strict=True)
    )


def shared_accesses(statement: Any, asynchronous: Collection[str]) -> SharedAccesses:
    """The shared memory that a statement accesses itself.

    Args:
        statement: the statement.
        asynchronous: operations that copy, or multiply, while the threads go on.
    """
    found = SharedAccesses()
    ranges: dict[ir.Var, Interval] = {}
    copied: set[Any] = set()
    for node in walk(statement):
        if isinstance(node, ir.For):
            first, extent = interval(node.min, ranges), interval(node.extent, ranges)
            ranges[node.loop_var] = first[0], first[1] + extent[1] - 1
        elif isinstance(node, ir.Call):
            if node.op == "tl.ptx_cp_async":
                copied.add(node.args[0].args[0])
            elif node.op in asynchronous:
                copied.update(a for a in node.args if isinstance(a, ir.Region) and a.writes)
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            scope = node.buffer.scope
            if scope.startswith("shared") and not scope.endswith("barrier"):
                written = getattr(node, "writes", isinstance(node, ir.BufferStore))
                access: Access = "copy" if node in copied else "write" if written else "read"
                found.add(node.buffer, _box(node, ranges), access)
    return found


def _box(access: Any, ranges: dict[ir.Var, Interval]) -> Box:
    if any(index.dtype not in ("int32", "int64") for index in access.indices):
        return (None,) * len(access.indices)
    extents = access.extents if isinstance(access, ir.Region) else (None,) * len(access.indices)
    box: list[Interval | None] = []
    for index, extent in zip(access.indices, extents, strict=True):
        low, high = interval(index, ranges)
        if extent is not None:
            more = interval(extent, ranges)[1]
            high = high + more - 1 if more < FAR else FAR
        box.append((low, high) if low > -FAR and high < FAR else None)
    return tuple(box)


# Where TileLang puts the fence between ordinary writes of shared memory and asynchronous reads ----
#
# TMA, wgmma and tcgen05 read shared memory through the asynchronous proxy, for which ordinary
# stores count only after `fence.proxy.async` (PTX ISA, "Async proxy"). TileLang's pass walks a
# kernel in the order of its source, whatever threads run it, and puts a fence before an
# asynchronous operation that may follow an ordinary store (`src/cuda/transform/
# inject_fence_proxy.cc`). Operations whose lowering is TileLang's choice are assumed to bring every
# fence that they may bring.

_NONE, _ORDINARY, _ASYNCHRONOUS = 1, 2, 4
_OPERATIONS = frozenset({"tl.tileop.tma_copy", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"})


def fenced_statements(body: ir.Stmt) -> set[ir.Stmt]:
    """The statements of a block before which TileLang puts a fence."""
    walker = _Walker()
    walker.visit(body)
    return walker.fenced


def _is_shared(buffer: ir.Buffer) -> bool:
    return buffer.scope in ("shared", "shared.dyn")


def _event(call: Any) -> str:
    """What a call does: "fence", "asynchronous", "ordinary", "either" or nothing."""
    if not isinstance(call, ir.Call):
        return ""
    if call.op == "tl.fence_proxy_async":
        return "fence"
    if call.op in _OPERATIONS or call.annotations.get("use_tma"):
        return "asynchronous"
    if call.op == "tl.tileop.gemm":
        return "either"
    reads = writes = False
    for argument in call.args:
        if isinstance(argument, ir.Region):
            buffer, writing = argument.buffer, argument.writes
        elif isinstance(argument, ir.Call) and argument.op == "tl.access_ptr":
            buffer, writing = argument.args[0].buffer, True
        else:
            continue
        if _is_shared(buffer):
            writes, reads = writes or writing, reads or not writing
    if writes:
        return "ordinary"
    return "either" if reads and call.op == "tl.tileop.copy" else ""


def _contains(statement: ir.Stmt) -> tuple[bool, bool]:
    """Whether a statement has ordinary stores to shared memory, and asynchronous operations."""
    nodes = list(walk(statement))
    events = {_event(node.value) for node in nodes if isinstance(node, ir.Evaluate)}
    stores = any(isinstance(n, ir.BufferStore) and _is_shared(n.buffer) for n in nodes)
    return stores or "ordinary" in events, "asynchronous" in events


class _Walker:
    """The pass: which proxies the last access may have gone through."""

    def __init__(self) -> None:
        self.state = _NONE
        self.fenced: set[ir.Stmt] = set()

    def visit(self, node: ir.Stmt) -> None:
        """Go through a statement."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child)
        elif isinstance(node, ir.BufferStore):
            if _is_shared(node.buffer):
                self.state = _ORDINARY
        elif isinstance(node, ir.Evaluate):
            self._evaluate(node)
        elif isinstance(node, ir.IfThenElse):
            self._branch(node)
        elif isinstance(node, (ir.For, ir.While)):
            self._loop(node)
        elif isinstance(node, (ir.AttrStmt, ir.Block)):
            self.visit(node.body)

    def _evaluate(self, node: ir.Evaluate) -> None:
        event = _event(node.value)
        if event == "fence":
            self.state = _NONE
        elif event == "ordinary":
            self.state = _ORDINARY
        elif event in ("asynchronous", "either"):
            if self.state & _ORDINARY:
                self.fenced.add(node)
            if event == "asynchronous":
                self.state = _ASYNCHRONOUS

    def _branch(self, node: ir.IfThenElse) -> None:
        entry = self.state
        if entry & _ORDINARY and node.else_case is not None:
            cases = [_contains(node.then_case), _contains(node.else_case)]
            if all(asynchronous and not ordinary for ordinary, asynchronous in cases):
                self.fenced.add(node)
                entry = _NONE
        self.state = entry
        self.visit(node.then_case)
        then = self.state
        self.state = entry
        if node.else_case is not None:
            self.visit(node.else_case)
        self.state |= then

    def _loop(self, node: ir.For | ir.While) -> None:
        entry = self.state
        ordinary, asynchronous = _contains(node.body)
        if entry & _ORDINARY and asynchronous and not ordinary:
            self.fenced.add(node)
            entry = _NONE
        header = entry
        while True:
            self.state = header
            self.visit(node.body)
            if header | self.state == header:
                break
            header |= self.state
        self.state |= entry


# How much shared and tensor memory a kernel needs, as TileLang's planners would lay it out --------

_ALIGNMENT = 128
# Rows of tensor memory; a column of one is 32 bits.
_ROWS = 128
_SHARED = ("shared", "shared.dyn")


def shared_memory(kernel: ir.Kernel) -> MemoryNeed | None:
    """The shared memory of a kernel; None if it has none or not of a known size.

    Buffers live from the first statement of their block that uses them to the last; where those
    do not overlap they share memory. A buffer that a pipelined loop fills has one copy a stage.
    """
    needs = [_of_block(node) for node in walk(kernel.body) if isinstance(node, ir.Block)]
    return max((n for n in needs if n is not None), key=lambda n: n.size, default=None)


def tensor_memory(kernel: ir.Kernel) -> MemoryNeed | None:
    """The columns of tensor memory that a kernel's buffers need together.

    None if it has none, not of a known size, or gives some of it back by hand. Buffers of tensor
    memory do not share columns, whatever their lives (TileLang, `lower_shared_tmem.cc`).
    """
    if calls(kernel.body, "tl.deallocate_tmem"):
        return None
    need: list[tuple[int, ir.Buffer]] = []
    for node in walk(kernel.body):
        for buffer in node.alloc_buffers if isinstance(node, ir.Block) else ():
            if buffer.scope != "shared.tmem":
                continue
            extents = [number(n) for n in buffer.shape]
            if None in extents or len(extents) < 2:
                return None
            *leading, rows, columns = extents
            size = -(-rows // _ROWS) * -(-columns * size_in_bits(buffer.dtype) // 32)
            need.append((size * math.prod(leading), buffer))
    if not need:
        return None
    need.sort(key=lambda n: -n[0])
    largest = need[0][1]
    texts = tuple(f"{b.name} {size}" for size, b in need)
    return MemoryNeed(sum(size for size, _ in need), largest.location, largest.name, texts)


def _of_block(block: ir.Block) -> MemoryNeed | None:
    shared = {b.data: b for b in block.alloc_buffers if b.scope in _SHARED}
    sizes: dict[ir.Var, int] = {}
    for data, buffer in shared.items():
        extents = [number(n) for n in buffer.shape]
        if None in extents:
            return None
        sizes[data] = -(-size_in_bits(buffer.dtype) * math.prod(extents) // 8)
    if not sizes:
        return None
    lives: dict[ir.Var, list[int]] = {}
    statements = _statements(block.body)
    for k, statement in enumerate(statements):
        for node in walk(statement):
            if isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
                data = node.buffer.data
                if data in sizes:
                    lives.setdefault(data, [k, k])[1] = k
    copies = _stages(block.body, sizes)
    best: tuple[int, list[ir.Var]] = (0, [])
    for k in range(len(statements)):
        alive = [d for d, (first, last) in lives.items() if first <= k <= last]
        need = {d: -(-sizes[d] * copies.get(d, 1) // _ALIGNMENT) * _ALIGNMENT for d in alive}
        if sum(need.values()) > best[0]:
            best = (sum(need.values()), sorted(alive, key=lambda d: -need[d]))  # used at once
    if not best[1]:
        return None
    largest = shared[best[1][0]]
    texts = tuple(f"{shared[d].name} {sizes[d] * copies.get(d, 1)}" for d in best[1])
    return MemoryNeed(best[0], largest.location, largest.name, texts)


def _statements(body: ir.Stmt) -> Sequence[ir.Stmt]:
    if isinstance(body, ir.SeqStmt):
        return [s for child in body.seq for s in _statements(child)]
    if isinstance(body, ir.AttrStmt):
        return _statements(body.body)
    return [body]


def _stages(body: ir.Stmt, sizes: dict[ir.Var, int]) -> dict[ir.Var, int]:
    """How many copies the loops that fill a buffer from global memory keep of it."""
    copies: dict[ir.Var, int] = {}
    for loop in walk(body):
        stages: Any = (
            (loop.annotations or {}).get("num_stages") if isinstance(loop, ir.For) else None
        )
        if stages is None:
            continue
        count = int(getattr(stages, "value", stages))
        for call in walk(loop.body):
            if isinstance(call, ir.Call) and call.op in ("tl.tileop.copy", "tl.tileop.async_copy"):
                source, target = (a.buffer for a in call.args[:2])
                if source.scope == "global" and target.data in sizes:
                    copies[target.data] = max(copies.get(target.data, 1), count)
    return copies
