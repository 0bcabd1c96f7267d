"""Which shared memory statements access, so that a barrier comes where TileLang puts one.

TileLang puts a barrier between two statements that access the same elements, one of them to
write; it looks at the ranges of indices (`src/transform/thread_storage_sync.cc`), so that two
halves of one buffer need none. Asynchronous operations it leaves to the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .intervals import FAR, Interval, interval

if TYPE_CHECKING:
    from collections.abc import Collection

Box = tuple[Interval | None, ...]


@dataclass
class SharedAccesses:
    """Accesses of shared memory.

    Attributes:
        boxes: of each buffer, the elements accessed and whether they are written: the first and
            last index of each dimension, or None where that is not known.
    """

    boxes: dict[ir.Buffer, dict[tuple[Box, bool], None]] = field(default_factory=dict)

    def add(self, buffer: ir.Buffer, box: Box, *, written: bool) -> None:
        """Add an access."""
        self.boxes.setdefault(buffer, {})[box, written] = None

    def include(self, other: SharedAccesses) -> None:
        """Add all of another's accesses."""
        for buffer, boxes in other.boxes.items():
            self.boxes.setdefault(buffer, {}).update(boxes)


def conflict(earlier: SharedAccesses, later: SharedAccesses) -> bool:
    """Whether elements may be accessed in both and written in one."""
    return any(
        (written or wrote) and _overlap(box, before)
        for buffer, boxes in later.boxes.items()
        for box, written in boxes
        for before, wrote in earlier.boxes.get(buffer, ())
    )


def _overlap(a: Box, b: Box) -> bool:
    return all(
        x is None or y is None or (x[0] <= y[1] and y[0] <= x[1]) for x, y in zip(a, b, strict=True)
    )


def shared_accesses(statement: Any, asynchronous: Collection[str]) -> SharedAccesses:
    """The shared memory that a statement accesses itself.

    Args:
        statement: the statement.
        asynchronous: operations whose accesses do not count.
    """
    found = SharedAccesses()
    ranges: dict[ir.Var, Interval] = {}
    skipped: set[Any] = set()
    for node in walk(statement):
        if isinstance(node, ir.For):
            first, extent = interval(node.min, ranges), interval(node.extent, ranges)
            ranges[node.loop_var] = first[0], first[1] + extent[1] - 1
        elif isinstance(node, ir.Call):
            if node.op == "tl.ptx_cp_async":
                skipped.update(a.args[0] for a in node.args[:2])
            elif node.op in asynchronous:
                skipped.update(a for a in node.args if isinstance(a, ir.Region))
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)) and node not in skipped:
            scope = node.buffer.scope
            if scope.startswith("shared") and not scope.endswith("barrier"):
                written = getattr(node, "writes", isinstance(node, ir.BufferStore))
                found.add(node.buffer, _box(node, ranges), written=written)
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
