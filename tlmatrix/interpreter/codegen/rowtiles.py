"""What tile operations do to the rows of their tiles; see `rows`."""

from __future__ import annotations

from typing import Any

from .firsts import op_name_of
from .rowclasses import Classes, Where

__all__ = ["REGIONS", "TileRows"]

REGIONS = ("tl.region", "tl.tileop.region")


class TileRows(Classes):
    """Follows tile operations."""

    def expression(self, node: Any, where: Where) -> None:
        """Take note of an expression."""
        raise NotImplementedError

    # -- tile operations; each says whether it knows what is done

    def _region(self, node: Any) -> tuple[Any, list[Any], list[int | None]] | None:
        if op_name_of(node) not in REGIONS:
            return None
        load = node.args[0]
        extents = [getattr(extent, "value", None) for extent in node.args[2:]]
        return load.buffer, list(map(self.inlined, load.indices)), extents

    def _dims(self, region: tuple[Any, list[Any], list[int | None]]) -> list[Any]:
        """Per dim of a region its node where it is whole; a part of a dim is fixed."""
        buffer, indices, extents = region
        mine = self.buffers.get(buffer.data)
        if mine is None:
            return [None] * len(indices)
        if not mine.same_as(buffer):
            self.fix_buffer(buffer)
            return [None] * len(indices)
        nodes: list[Any] = []
        for axis, (index, extent) in enumerate(zip(indices, extents, strict=True)):
            node = (buffer.data, axis)
            whole = getattr(index, "value", None) == 0 and extent == self.sizes[node]
            if not whole:
                self.fix(node)
            nodes.append(node if whole else None)
        return nodes

    def _tile_copy(self, call: Any, where: Where) -> bool:
        sides = [self._region(arg) for arg in call.args[:2]]
        if any(side is None for side in sides):
            return False
        src, dst = sides
        assert src is not None
        assert dst is not None
        ranged = [[k for k, n in enumerate(side[2]) if n != 1] for side in (src, dst)]
        extents = [[side[2][k] for k in ks] for side, ks in zip((src, dst), ranged, strict=True)]
        if extents[0] != extents[1]:
            return False
        mine, its = self._dims(src), self._dims(dst)
        for each in (src, dst):
            for index in each[1]:
                self.expression(index, where)
        stored = dst[0].data not in self.buffers
        for k, n in zip(*ranged, strict=True):
            one, other = mine[k], its[n]
            if one is not None and other is not None:
                self.unite(one, other)
            elif one is not None and stored:
                self.class_of(one).whole.append(where.uniform)
            elif one is not None:
                self.fix(one)
            elif other is not None and src[0].data in self.buffers:
                self.fix(other)
        if stored:
            for k in set(range(len(mine))) - set(ranged[0]):
                self.fix(*(node for node in (mine[k],) if node is not None))
        return True

    _tile_async_copy = _tile_copy

    def _tile_fill(self, call: Any, where: Where) -> bool:
        region = self._region(call.args[0])
        if region is None:
            return False
        self._dims(region)
        for index in (*region[1], self.inlined(call.args[1])):
            self.expression(index, where)
        return True

    def _tile_gemm(self, call: Any, where: Where) -> bool:
        del where
        regions = [self._region(arg) for arg in call.args[:3]]
        if any(r is None or len(r[1]) != 2 or r[0].data not in self.buffers for r in regions):
            return False
        turned = [getattr(call.args[k], "value", None) for k in (3, 4)]
        if None in turned:
            return False
        a, b, c = (self._dims(r) for r in regions if r is not None)
        row, summed = (a[1], a[0]) if turned[0] else (a[0], a[1])
        column, also = (b[0], b[1]) if turned[1] else (b[1], b[0])
        for node in (summed, also):
            self.fix(*(n for n in (node,) if n is not None))
        for one, other in ((row, c[0]), (column, c[1])):
            if one is not None and other is not None:
                self.unite(one, other)
            else:
                self.fix(*(n for n in (one, other) if n is not None))
        for rest in call.args[5:]:
            self.fix_all(rest)
        return True

    def _tile_reduce(self, call: Any, where: Where) -> bool:
        del where
        src, dst = self._region(call.args[0]), self._region(call.args[1])
        axis = getattr(call.args[3], "value", None)
        if src is None or dst is None or axis is None or axis < 0:
            return False
        if src[0].data not in self.buffers or dst[0].data not in self.buffers:
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
                self.fix(*(n for n in (one, other) if n is not None))
        return True
