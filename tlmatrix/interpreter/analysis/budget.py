"""How much shared and tensor memory a kernel needs, as TileLang's planners would lay it out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, walk
from tlmatrix.interpreter.program import MemoryNeed

from .constants import number

if TYPE_CHECKING:
    from collections.abc import Sequence

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
