"""How much shared and tensor memory a kernel needs, as TileLang's planners would lay it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .source import Location, buffer_location

__all__ = ["SharedMemory", "shared_memory", "tensor_memory"]

_ALIGNMENT = 128
# Rows of tensor memory; a column of one is 32 bits.
_ROWS = 128


@dataclass(frozen=True)
class SharedMemory:
    """The largest need of a kernel.

    Attributes:
        size: bytes; of tensor memory columns.
        location: the line of the largest buffer of it.
        largest: that buffer's name.
        buffers: the buffers that live at once, as "name size".
    """

    size: int
    location: Location | None
    largest: str
    buffers: tuple[str, ...]


def shared_memory(func: Any) -> SharedMemory | None:
    """The need of a PrimFunc; None if it has no shared memory or not of a known size.

    Buffers live from the first statement of their block that uses them to the last; where those
    do not overlap they share memory. A buffer that a pipelined loop fills has one copy a stage.
    """
    from tilelang import tvm

    worst: SharedMemory | None = None

    def visit(node: Any) -> None:
        nonlocal worst
        if isinstance(node, tvm.tirx.SBlock):
            found = _of_block(node)
            if found is not None and (worst is None or found.size > worst.size):
                worst = found

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return worst


def tensor_memory(func: Any) -> SharedMemory | None:
    """The columns of tensor memory that a PrimFunc's buffers need together.

    None if it has none, not of a known size, or gives some of it back by hand. Buffers of tensor
    memory do not share columns, whatever their lives (TileLang, `lower_shared_tmem.cc`).
    """
    from tilelang import tvm

    need: list[tuple[int, Any]] = []
    unknown = False

    def visit(node: Any) -> None:
        nonlocal unknown
        if isinstance(node, tvm.tirx.Call):
            unknown = unknown or str(getattr(node.op, "name", "")) == "tl.deallocate_tmem"
        if not isinstance(node, tvm.tirx.SBlock):
            return
        for buffer in node.alloc_buffers:
            if str(buffer.scope()) != "shared.tmem":
                continue
            extents = [getattr(n, "value", None) for n in buffer.shape]
            if None in extents or len(extents) < 2:
                unknown = True
                continue
            *leading, rows, columns = (int(n) for n in extents if n is not None)
            size = -(-rows // _ROWS) * -(-columns * _bits(str(buffer.dtype)) // 32)
            for n in leading:
                size *= n
            need.append((size, buffer))

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if unknown or not need:
        return None
    need.sort(key=lambda n: -n[0])
    largest = need[0][1]
    return SharedMemory(
        sum(size for size, _ in need),
        buffer_location(largest),
        str(largest.name),
        tuple(f"{b.name} {size}" for size, b in need),
    )


def _of_block(block: Any) -> SharedMemory | None:
    shared = [b for b in block.alloc_buffers if str(b.scope()) in ("shared", "shared.dyn")]
    sizes: dict[Any, int] = {}
    for buffer in shared:
        extents = [getattr(n, "value", None) for n in buffer.shape]
        if None in extents:
            return None
        size = int(buffer.dtype.bits) if hasattr(buffer.dtype, "bits") else _bits(str(buffer.dtype))
        for n in extents:
            size *= int(n)  # type: ignore[arg-type]  # None was excluded
        sizes[buffer.data] = -(-size // 8)
    if not sizes:
        return None
    lives: dict[Any, list[int]] = {}
    statements = _statements(block.body)
    for number, statement in enumerate(statements):
        for data in _touched(statement, sizes):
            lives.setdefault(data, [number, number])[1] = number
    copies = _stages(block.body, sizes)
    names = {b.data: str(b.name) for b in shared}
    lines = {b.data: buffer_location(b) for b in shared}
    best: tuple[int, list[Any]] = (0, [])
    for number in range(len(statements)):
        alive = [d for d, (first, last) in lives.items() if first <= number <= last]
        need = {d: -(-sizes[d] * copies.get(d, 1) // _ALIGNMENT) * _ALIGNMENT for d in alive}
        total = sum(need.values())
        if total > best[0]:
            best = (total, sorted(alive, key=lambda d: -need[d]))  # used at once
    if not best[1]:
        return None
    largest = best[1][0]
    spelled = tuple(f"{names[d]} {sizes[d] * copies.get(d, 1)}" for d in best[1])
    return SharedMemory(best[0], lines[largest], names[largest], spelled)


def _bits(dtype: str) -> int:
    if dtype == "bool":
        return 8
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return int(digits[0]) if digits else 8


def _statements(body: Any) -> list[Any]:
    from tilelang import tvm

    if isinstance(body, tvm.tirx.SeqStmt):
        return [s for child in body.seq for s in _statements(child)]
    if isinstance(body, tvm.tirx.AttrStmt):
        return _statements(body.body)
    return [body]


def _touched(statement: Any, sizes: dict[Any, int]) -> list[Any]:
    from tilelang import tvm

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
            data = node.buffer.data
            if data in sizes and data not in found:
                found.append(data)

    tvm.tirx.stmt_functor.post_order_visit(statement, visit)
    return found


def _stages(body: Any, sizes: dict[Any, int]) -> dict[Any, int]:
    """How many copies the loops that fill a buffer from global memory keep of it."""
    from tilelang import tvm

    copies: dict[Any, int] = {}

    def loop(node: Any) -> None:
        if not isinstance(node, tvm.tirx.For) or "num_stages" not in node.annotations:
            return
        stages = int(node.annotations["num_stages"])

        def call(inner: Any) -> None:
            name = str(getattr(getattr(inner, "op", None), "name", ""))
            if name not in ("tl.tileop.copy", "tl.tileop.async_copy"):
                return
            source, target = (a.args[0].buffer for a in inner.args[:2])
            if str(source.scope()) == "global" and target.data in sizes:
                copies[target.data] = max(copies.get(target.data, 1), stages)

        tvm.tirx.stmt_functor.post_order_visit(node.body, call)

    tvm.tirx.stmt_functor.post_order_visit(body, loop)
    return copies
