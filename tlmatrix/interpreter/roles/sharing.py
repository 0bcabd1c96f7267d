"""Which shared memory statements access, so that a barrier comes where TileLang puts one.

TileLang puts a barrier between two statements that access the same elements, one of them to
write; it looks at the ranges of indices (`src/transform/thread_storage_sync.cc`), so that two
halves of one buffer need none. What is asynchronous it leaves to the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tlmatrix.interpreter.codegen.expressions import op_name

__all__ = ["Uses", "conflict", "shared_uses"]

_REGIONS = ("tl.region", "tl.tileop.region")
# The range of an index that is known to lie below this.
_FAR = 1 << 40

Box = tuple[tuple[int, int] | None, ...]


@dataclass
class Uses:
    """Accesses of shared memory.

    Attributes:
        boxes: of each buffer, the elements accessed and whether they are written: the first and
            last index of each dimension, or None where that is not known.
    """

    boxes: dict[Any, dict[tuple[Box, bool], None]] = field(default_factory=dict)

    def add(self, buffer: Any, box: Box, written: bool) -> None:
        """Note an access."""
        self.boxes.setdefault(buffer, {})[box, written] = None

    def include(self, other: Uses) -> None:
        """Note all accesses of others, too."""
        for buffer, boxes in other.boxes.items():
            self.boxes.setdefault(buffer, {}).update(boxes)


def conflict(earlier: Uses, later: Uses) -> bool:
    """Whether elements may be accessed in both and written in one."""
    return any(
        (written or wrote) and _meet(box, before)
        for buffer, boxes in later.boxes.items()
        for box, written in boxes
        for before, wrote in earlier.boxes.get(buffer, ())
    )


def _meet(a: Box, b: Box) -> bool:
    return all(
        x is None or y is None or (x[0] <= y[1] and y[0] <= x[1]) for x, y in zip(a, b, strict=True)
    )


def shared_uses(node: Any, asynchronous: frozenset[str]) -> Uses:
    """What a statement accesses itself of shared memory.

    Args:
        node: the statement.
        asynchronous: operations whose accesses do not count.
    """
    from tilelang import tvm

    uses = Uses()
    analyzer = tvm.arith.Analyzer()
    skipped: list[Any] = []
    # Of regions: the load that names the first element, the extents, and whether it is written.
    regions: list[tuple[Any, list[Any], bool]] = []

    def look(child: Any) -> None:
        if isinstance(child, tvm.tirx.For):
            analyzer.bind(child.loop_var, tvm.ir.Range.from_min_extent(child.min, child.extent))
        if not isinstance(child, tvm.tirx.Call):
            return
        name = op_name(child)
        if name == "tl.ptx_cp_async":
            skipped.extend(a.args[0] for a in child.args[:2])
        if name in asynchronous:
            calls = (a for a in child.args if isinstance(a, tvm.tirx.Call))
            skipped.extend(a.args[0] for a in calls if op_name(a) in _REGIONS)
        elif name in _REGIONS:
            written = bool(int(child.args[1]) & 2)
            regions.append((child.args[0], list(child.args[2:]), written))

    def box(access: Any, extents: list[Any]) -> Box:
        found: list[tuple[int, int] | None] = []
        for k, index in enumerate(access.indices):
            bound = analyzer.const_int_bound(index)
            low, high = int(bound.min_value), int(bound.max_value)
            if extents:
                more = int(analyzer.const_int_bound(extents[k]).max_value)
                high = high + more - 1 if more < _FAR else _FAR
            known = low > -_FAR and high < _FAR
            found.append((low, high) if known else None)
        return tuple(found)

    def note(child: Any) -> None:
        if not isinstance(child, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
            return
        scope = str(child.buffer.scope())
        if not scope.startswith("shared") or scope.endswith("barrier"):
            return
        if any(child.same_as(s) for s in skipped):
            return
        extents: list[Any] = []
        written = isinstance(child, tvm.tirx.BufferStore)
        for first, sizes, writes in regions:
            if child.same_as(first):
                extents, written = sizes, written or writes
        if any(str(index.dtype) not in ("int32", "int64") for index in child.indices):
            uses.add(child.buffer, (None,) * len(child.indices), written)
            return
        uses.add(child.buffer, box(child, extents), written)

    tvm.tirx.stmt_functor.post_order_visit(node, look)
    tvm.tirx.stmt_functor.post_order_visit(node, note)
    return uses
