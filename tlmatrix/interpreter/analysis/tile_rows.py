"""What tile operations do to the rows of their tiles; see `liveness`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import substitute, walk

from .constants import is_zero, number
from .row_groups import RowGroups


@dataclass(frozen=True)
class Place:
    """What holds at a place of the kernel.

    Attributes:
        loops: variables of the parallel loops around it.
        masks: conditions on those.
        uniform: conditions on the block.
        ungated: loops that a condition of another kind depends on.
        in_grid: whether it is inside of the grid.
    """

    loops: tuple[ir.Var, ...] = ()
    masks: tuple[Any, ...] = ()
    uniform: tuple[Any, ...] = ()
    ungated: frozenset[ir.Var] = frozenset()
    in_grid: bool = False


class TileRows(RowGroups):
    """Groups the rows of tile operations.

    Attributes:
        values: of variables that are bound.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[ir.Var, Any] = {}

    def expression(self, node: Any, place: Place) -> None:
        """Take note of an expression."""
        raise NotImplementedError

    def fix_all(self, node: Any) -> None:
        """All that an expression or statement names: nothing is known of what it does."""
        for child in walk(self.inlined(node) if isinstance(node, ir.Expr) else node):
            if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region)):
                self.fix_buffer(child.buffer)
            elif isinstance(child, ir.Var):
                if child in self.sizes:
                    self.fix(child)
                if child in self.buffers:
                    self.fix_buffer(self.buffers[child])

    def inlined(self, node: Any) -> Any:
        """An expression with the values of what is bound in it."""
        return substitute(node, self.values) if self.values else node

    def tile_operation(self, call: ir.Call, place: Place) -> bool:
        """Take note of a tile operation; False if nothing is known of what it does to rows."""
        if call.op in ("tl.tileop.copy", "tl.tileop.async_copy"):
            return self._copy(call, place)
        if call.op == "tl.tileop.fill":
            return self._fill(call, place)
        if call.op == "tl.tileop.gemm":
            return self._gemm(call)
        return call.op == "tl.tileop.reduce" and self._reduce(call)

    def _dims(self, region: ir.Region) -> list[Any]:
        """Of each dim of a region its node where it is whole; a part of a dim is fixed."""
        known = self.buffers.get(region.buffer.data)
        if known is None:
            return [None] * len(region.indices)
        if known is not region.buffer:
            self.fix_buffer(region.buffer)
            return [None] * len(region.indices)
        nodes: list[Any] = []
        for axis, (index, extent) in enumerate(zip(region.indices, region.extents, strict=True)):
            node = (region.buffer.data, axis)
            if is_zero(self.inlined(index)) and number(extent) == self.sizes[node]:
                nodes.append(node)
            else:
                self.fix(node)
                nodes.append(None)
        return nodes

    def _copy(self, call: ir.Call, place: Place) -> bool:
        src, dst = call.args[:2]
        ranged = [[k for k, n in enumerate(r.extents) if number(n) != 1] for r in (src, dst)]
        extents = [
            [number(r.extents[k]) for k in ks] for r, ks in zip((src, dst), ranged, strict=True)
        ]
        if extents[0] != extents[1]:
            return False
        mine, its = self._dims(src), self._dims(dst)
        for region in (src, dst):
            for index in region.indices:
                self.expression(self.inlined(index), place)
        stored = dst.buffer.data not in self.buffers
        for k, n in zip(*ranged, strict=True):
            one, other = mine[k], its[n]
            if one is not None and other is not None:
                self.unite(one, other)
            elif one is not None and stored:
                self.group(one).whole.append(place.uniform)
            elif one is not None:
                self.fix(one)
            elif other is not None and src.buffer.data in self.buffers:
                self.fix(other)
        if stored:
            self.fix(*(mine[k] for k in set(range(len(mine))) - set(ranged[0])))
        return True

    def _fill(self, call: ir.Call, place: Place) -> bool:
        self._dims(call.args[0])
        for index in (*call.args[0].indices, call.args[1]):
            self.expression(self.inlined(index), place)
        return True

    def _gemm(self, call: ir.Call) -> bool:
        regions = call.args[:3]
        if any(len(r.indices) != 2 or r.buffer.data not in self.buffers for r in regions):
            return False
        transposes = [number(call.args[k]) for k in (3, 4)]
        if None in transposes:
            return False
        a, b, c = map(self._dims, regions)
        row, summed = (a[1], a[0]) if transposes[0] else (a[0], a[1])
        column, also = (b[0], b[1]) if transposes[1] else (b[1], b[0])
        self.fix(summed, also)
        for one, other in ((row, c[0]), (column, c[1])):
            if one is not None and other is not None:
                self.unite(one, other)
            else:
                self.fix(one, other)
        for rest in call.args[5:]:
            self.fix_all(rest)
        return True

    def _reduce(self, call: ir.Call) -> bool:
        src, dst = call.args[:2]
        axis = number(call.args[3])
        if (
            axis is None
            or axis < 0
            or not {src.buffer.data, dst.buffer.data} <= self.buffers.keys()
        ):
            return False
        mine, its = self._dims(src), self._dims(dst)
        if len(its) == len(mine) - 1:
            its = [*its[:axis], None, *its[axis:]]
        if len(its) != len(mine):
            return False
        for k, (one, other) in enumerate(zip(mine, its, strict=True)):
            if k != axis and one is not None and other is not None:
                self.unite(one, other)
            else:
                self.fix(one, other)
        return True
