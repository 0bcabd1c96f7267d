"""Which rows of a block's tiles can reach global memory: the others need not be computed.

The last tile of a sequence is mostly empty: a block computes all rows of its tiles and stores those
that are there. Where every path from a row of a tile to global memory stays in that row (products
keep the rows of their left factor, reductions those of what they reduce) and ends in a store under
`row < limit`, rows from `limit` on are never seen: leaving them out changes no bit of a result.

Dims of local buffers and parallel loops that must be cut together make a class. One that an
operation mixes (a product sums over it, an index is computed from it) is not cut at all, nor is one
that reaches memory with no such test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .elements import ATOMICS
from .firsts import op_name_of
from .lanes import spreads
from .rowclasses import Where
from .rowtiles import REGIONS, TileRows
from .stores import root_choice

__all__ = ["Cut", "row_cuts"]

_LOCAL = ("shared", "shared.dyn", "local.fragment")
_LEAST = 32
"""Rows of a tile that is worth it."""
_PURE = ("Add", "Sub", "Mul", "Min", "Max", "FloorDiv", "FloorMod")
_COMPARISONS = {"LT": (0, False), "LE": (1, False), "GT": (0, True), "GE": (1, True)}


@dataclass(frozen=True)
class Cut:
    """A class of rows.

    Attributes:
        rows: how many a whole tile has.
        limits: integer expressions of the block; rows that none of them is larger than are never
            seen.
        data: the memory of buffers whose first dim is one of the class.
        loops: variables of parallel loops over the class.
        gates: conditions under which `row < limit` holds.
    """

    rows: int
    limits: tuple[Any, ...]
    data: tuple[Any, ...]
    loops: tuple[Any, ...]
    gates: tuple[Any, ...]


def row_cuts(func: Any, usage: dict[Any, set[str]]) -> list[Cut]:
    """The rows of a kernel's tiles that may be left out; `usage` is what it does with memory."""
    found = _Rows(func, usage)
    found.statement(func.body, Where())
    return found.cuts() if found.grids == 1 else []


class _Rows(TileRows):
    """One analysis."""

    # -- statements

    def statement(self, node: Any, where: Where) -> None:
        """Take note of one statement."""
        kind = type(node).__name__
        method = getattr(self, f"_on_{kind}", None)
        if method is not None:
            method(node, where)
        else:
            self.fix(*where.lanes)
            self._fix_statement(node)

    def _fix_statement(self, node: Any) -> None:
        def visit(child: Any) -> None:
            if isinstance(child, (self.tirx.BufferLoad, self.tirx.BufferStore)):
                self.fix_buffer(child.buffer)

        self.tirx.stmt_functor.post_order_visit(node, visit)

    def _on_SeqStmt(self, node: Any, where: Where) -> None:
        for child in node.seq:
            self.statement(child, where)

    def _on_SBlockRealize(self, node: Any, where: Where) -> None:
        self.statement(node.block, where)

    def _on_SBlock(self, node: Any, where: Where) -> None:
        for buffer in node.alloc_buffers:
            if str(buffer.scope()) in _LOCAL and where.inside_grid and not where.lanes:
                self.buffers[buffer.data] = buffer
                for axis, extent in enumerate(buffer.shape):
                    self.sizes[buffer.data, axis] = getattr(extent, "value", None)
                    if axis:
                        self.fix((buffer.data, axis))
        self.statement(node.body, where)

    def _on_AttrStmt(self, node: Any, where: Where) -> None:
        self.statement(node.body, where)

    def _on_Bind(self, node: Any, where: Where) -> None:
        value = self.inlined(node.value)
        self.expression(value, where)
        self.values[node.var] = value

    def _on_For(self, node: Any, where: Where) -> None:
        ends = [self.inlined(each) for each in (node.min, node.extent)]
        for each in ends:
            self.expression(each, where)
        if int(node.kind) == 4:
            if not where.inside_grid:
                self.grids += 1
            self.known.add(node.loop_var)
            self.statement(node.body, Where(inside_grid=True))
        elif spreads(node):
            variable = node.loop_var
            whole = getattr(node.min, "value", None) == 0
            self.sizes[variable] = getattr(node.extent, "value", None) if whole else None
            self.statement(node.body, Where(
                (*where.lanes, variable), where.masks, where.uniform, where.loose, True
            ))  # fmt: skip
        else:
            if any(self.lanes_in(each, where) for each in ends):
                self.fix(*where.lanes)
            self.statement(node.body, where)

    def _on_While(self, node: Any, where: Where) -> None:
        condition = self.inlined(node.condition)
        self.fix(*self.lanes_in(condition, where))
        self.expression(condition, where)
        self.statement(node.body, where)

    def _on_IfThenElse(self, node: Any, where: Where) -> None:
        condition = self.inlined(node.condition)
        self.expression(condition, where)
        lanes = self.lanes_in(condition, where)
        for lane in lanes:
            limit = self._gate(condition, lane, where)
            if limit is None or node.else_case is not None:
                self.fix(lane)
            else:
                self.class_of(lane).limits.append(limit)
                self.class_of(lane).gates.append(node.condition)
        cases: list[tuple[Any, Any]] = [(node.then_case, condition)]
        if node.else_case is not None:
            cases.append((node.else_case, self.tirx.Not(condition)))
        for case, holds in cases:
            masks, uniform = where.masks, where.uniform
            if lanes:
                masks = (*masks, holds)
            else:
                uniform = (*uniform, holds)
            self.statement(case, Where(where.lanes, masks, uniform, where.loose, True))

    def _on_BufferStore(self, node: Any, where: Where) -> None:
        if node.predicate is not None:
            self.fix(*where.lanes)
        self.expression(self.inlined(node.value), where)
        if choice := root_choice(node.value):
            condition = self.inlined(choice[0])
            for lane in self.lanes_in(condition, where):
                if self._gate(condition, lane, where) is not None:
                    self.class_of(lane).gates.append(choice[0])
        self._written(node.buffer, list(map(self.inlined, node.indices)), where)

    def _on_Evaluate(self, node: Any, where: Where) -> None:
        call = node.value
        name = op_name_of(call)
        if not name:
            self.expression(self.inlined(call), where)
            return
        if name.startswith("tl.tileop.") and not where.lanes:
            tile = getattr(self, "_tile_" + name.removeprefix("tl.tileop."), None)
            if tile is not None and tile(call, where):
                return
        if name in ATOMICS and ATOMICS[name][1:] == (False, 1) and len(call.args) > 1:
            pointer = call.args[0]
            if op_name_of(pointer) == "tl.access_ptr":
                load = pointer.args[0]
                if load.buffer.data not in self.buffers:
                    self.expression(self.inlined(call.args[1]), where)
                    self._written(load.buffer, list(map(self.inlined, load.indices)), where)
                    return
        self.fix_all(call)

    # -- expressions

    def expression(self, node: Any, where: Where) -> None:
        kind = type(node).__name__
        if kind == "BufferLoad":
            self._read(node, where)
        elif kind == "Select":
            self._choice(node.condition, node.true_value, node.false_value, where)
        elif kind == "Call" and op_name_of(node) == "tirx.if_then_else":
            self._choice(node.args[0], node.args[1], node.args[2], where)
        elif kind == "Call" and not any(
            op_name_of(arg) in (*REGIONS, "tl.access_ptr", "tirx.address_of") for arg in node.args
        ):
            for arg in node.args:
                self.expression(arg, where)
        elif kind == "Cast":
            self.expression(node.value, where)
        elif kind in ("And", "Or") or hasattr(node, "a"):
            for part in (node.a, getattr(node, "b", None)):
                if part is not None:
                    self.expression(part, where)
        elif kind not in ("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"):
            self.fix_all(node)

    def _choice(self, condition: Any, if_true: Any, if_false: Any, where: Where) -> None:
        self.expression(condition, where)
        lanes = self.lanes_in(condition, where)
        gated = set()
        for lane in lanes:
            limit = self._gate(condition, lane, where)
            if limit is not None:
                gated.add(lane)
                self.class_of(lane).limits.append(limit)
        for value, free in ((if_true, set(lanes) - gated), (if_false, set(lanes))):
            loose = where.loose | free
            self.expression(
                value, Where(where.lanes, where.masks, where.uniform, loose, where.inside_grid)
            )

    def _read(self, load: Any, where: Where) -> None:
        for index in load.indices:
            self.expression(index, where)
        if load.predicate is not None:
            self.fix(*where.lanes)
        self._placed(load.buffer, list(load.indices), where)
        if load.buffer.data not in self.buffers:
            # Which rows of memory are read is watched as it would be of whole tiles.
            for lane in self._lanes_in_all(load.indices, where):
                if lane in where.loose:
                    self.fix(lane)

    def _written(self, buffer: Any, indices: list[Any], where: Where) -> None:
        for index in indices:
            self.expression(index, where)
        self._placed(buffer, indices, where)
        used = self._lanes_in_all(indices, where)
        if buffer.data in self.buffers:
            self.fix(*(lane for lane in where.lanes if lane not in used))
            return
        for lane in where.lanes:
            gates = (self._gate(mask, lane, where) for mask in where.masks)
            if str(buffer.scope()) != "global" or not any(gate is not None for gate in gates):
                self.fix(lane)

    def _lanes_in_all(self, indices: Any, where: Where) -> set[Any]:
        return {lane for index in indices for lane in self.lanes_in(index, where)}

    def _placed(self, buffer: Any, indices: list[Any], where: Where) -> None:
        """An element at indices: rows of a local buffer are a loop's, of others a stretch."""
        mine = self.buffers.get(buffer.data)
        if mine is not None and not mine.same_as(buffer):
            self.fix_buffer(buffer)
            mine = None
        if mine is None and str(buffer.scope()) != "global":
            self.fix(*self._lanes_in_all(indices, where))
            return
        seen: set[Any] = set()
        for axis, index in enumerate(indices):
            lanes = self.lanes_in(index, where)
            if mine is not None:
                node = (buffer.data, axis)
                if lanes and index.same_as(lanes[0]) and self.sizes[node] == self.sizes[index]:
                    self.unite(node, index)
                    if index in seen:
                        self.fix(index)
                else:
                    self.fix(node, *lanes)
            elif lanes:
                rest = self.arith.simplify(index - lanes[0])
                if len(lanes) > 1 or lanes[0] in seen or lanes[0] in self.variables(rest):
                    self.fix(*lanes)
            seen.update(lanes)

    # -- limits

    def _gate(self, condition: Any, lane: Any, where: Where) -> Any:
        """The limit below which a lane is where a condition holds; None where it sets none."""
        kind = type(condition).__name__
        if kind == "And":
            found = self._gate(condition.a, lane, where)
            return found if found is not None else self._gate(condition.b, lane, where)
        if kind not in _COMPARISONS:
            return None
        more, swapped = _COMPARISONS[kind]
        small, large = condition.a, condition.b
        if swapped:
            small, large = large, small
        rest = self.arith.simplify(small - lane)
        if self.lanes_in(rest, where) or self.lanes_in(large, where):
            return None
        return self.arith.simplify(large - rest + more)

    def _steady(self, node: Any) -> bool:
        """Whether an integer is known where a block starts, and stays the same."""
        kind = type(node).__name__
        if kind in _PURE:
            if kind.startswith("Floor") and not getattr(node.b, "value", 0):
                return False
            return self._steady(node.a) and self._steady(node.b)
        if kind == "BufferLoad":
            data = node.buffer.data
            usage = next((u for d, u in self.usage.items() if d.same_as(data)), set())
            only_read = str(node.buffer.scope()) == "global" and usage == {"read"}
            return (
                only_read
                and node.predicate is None
                and str(node.buffer.dtype).startswith("int")
                and all(self._steady(index) for index in node.indices)
            )
        if kind == "IntImm":
            return True
        return kind in ("Var", "SizeVar") and node in self.known

    def cuts(self) -> list[Cut]:
        """What may be cut, once all statements are known."""
        found = []
        for each in {id(c): c for c in self.classes.values()}.values():
            sizes = {self.sizes.get(member) for member in each.members}
            data = tuple(m[0] for m in each.members if isinstance(m, tuple))
            rows = sizes.pop() if len(sizes) == 1 else None
            if each.fixed or rows is None or rows < _LEAST or not data:
                continue
            limits: list[Any] = []
            for limit in each.limits:
                if not any(self.ir.structural_equal(limit, known) for known in limits):
                    limits.append(limit)
            if not limits or not all(map(self._steady, limits)):
                continue
            if all(self._implied(conditions, limits, rows) for conditions in each.whole):
                loops = tuple(m for m in each.members if not isinstance(m, tuple))
                found.append(Cut(rows, tuple(limits), data, loops, tuple(each.gates)))
        return found

    def _implied(self, conditions: tuple[Any, ...], limits: list[Any], rows: int) -> bool:
        """Whether under conditions some limit is at least `rows`: then all rows are computed."""
        for condition in conditions:
            for part in _conjuncts(condition):
                kind = type(part).__name__
                if kind in _COMPARISONS:
                    more, swapped = _COMPARISONS[kind]
                    small, large = (part.b, part.a) if swapped else (part.a, part.b)
                    room = large - small - (0 if more else 1)  # not negative
                    for limit in limits:
                        over = self.arith.simplify(limit - rows - room)
                        if getattr(over, "value", -1) >= 0:
                            return True
        return False


def _conjuncts(condition: Any) -> list[Any]:
    if type(condition).__name__ == "And":
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]
