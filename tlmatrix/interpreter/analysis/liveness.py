"""Live rows: which rows of a block's tiles can reach global memory.

The last tile of a sequence is mostly empty: a block computes all rows of its tiles and stores
those that are there. Where every path from a row of a tile to global memory stays in that row
(products keep the rows of their left factor, reductions those of their operand) and ends in a
store under `row < limit`, rows from `limit` on are dead: leaving them out changes no bit of a
result.

Dims of local buffers and parallel loops that must be trimmed together make a group. One that an
operation mixes (a product sums over it, an index is computed from it) is not trimmed at all, nor
is one that reaches memory with no such test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, walk

from .constants import is_zero, number
from .linear import linear
from .loops import is_grid, is_parallel
from .tile_rows import Place, TileRows
from .usage import is_read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_LOCAL = ("shared", "shared.dyn", "local.fragment")
_LEAST = 32
"""Rows of a tile that is worth it."""
_LINEAR = (ir.Add, ir.Sub, ir.Mul, ir.Min, ir.Max)
_DIVISIONS = (ir.FloorDiv, ir.FloorMod)
# By symbol: what is added to the larger side, and whether the sides are swapped.
_COMPARISONS = {"<": (0, False), "<=": (1, False), ">": (0, True), ">=": (1, True)}
_POINTERS = ("tl.access_ptr", "tirx.address_of")
_ADDS = ("tl.atomic_add_elem_op", "tl.atomic_max_elem_op", "tl.atomic_min_elem_op")


@dataclass(frozen=True)
class LiveRows:
    """A group of rows that is trimmed.

    Attributes:
        rows: how many a whole tile has.
        limits: integer expressions of the block; rows that none of them exceeds are dead.
        data: the memory of buffers whose first dim is in the group.
        loops: variables of parallel loops over the group.
        gates: conditions under which `row < limit` holds.
    """

    rows: int
    limits: tuple[Any, ...]
    data: tuple[ir.Var, ...]
    loops: tuple[ir.Var, ...]
    gates: tuple[Any, ...]


def live_rows(
    kernel: ir.Kernel,
    usage: Mapping[ir.Var, frozenset[str]],
    root_choice: Callable[[Any], tuple[Any, Any, Any] | None],
) -> list[LiveRows]:
    """The rows of a kernel's tiles that may be left out."""
    found = _Analysis(kernel, usage, root_choice)
    found.statement(kernel.body, Place())
    return found.result() if found.grids == 1 else []


class _Analysis(TileRows):
    """One analysis; a node is a dim of a buffer, as (data, dim), or the variable of a loop."""

    def __init__(
        self,
        kernel: ir.Kernel,
        usage: Mapping[ir.Var, frozenset[str]],
        root_choice: Callable[[Any], tuple[Any, Any, Any] | None],
    ) -> None:
        super().__init__()
        self.grids = 0
        self._usage, self._root_choice = usage, root_choice
        self._known: set[Any] = set(kernel.params)
        for buffer in kernel.buffer_map.values():
            nodes = walk(*buffer.shape, *buffer.strides)
            self._known |= {node for node in nodes if isinstance(node, ir.Var)}

    @staticmethod
    def _loops_in(node: Any, place: Place) -> list[ir.Var]:
        """The parallel loops in force that an expression depends on."""
        named = set(walk(node)) if place.loops else set()
        return [loop for loop in place.loops if loop in named]

    def _loops_in_all(self, nodes: Iterable[Any], place: Place) -> set[ir.Var]:
        return {loop for node in nodes for loop in self._loops_in(node, place)}

    # -- statements

    def statement(self, node: Any, place: Place) -> None:
        """Take note of one statement."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.statement(child, place)
        elif isinstance(node, ir.Block):
            self._block(node, place)
        elif isinstance(node, ir.AttrStmt):
            self.statement(node.body, place)
        elif isinstance(node, ir.Bind):
            value = self.inlined(node.value)
            self.expression(value, place)
            self.values[node.var] = value
        elif isinstance(node, ir.For):
            self._loop(node, place)
        elif isinstance(node, ir.While):
            condition = self.inlined(node.condition)
            self.fix(*self._loops_in(condition, place))
            self.expression(condition, place)
            self.statement(node.body, place)
        elif isinstance(node, ir.IfThenElse):
            self._branch(node, place)
        elif isinstance(node, ir.BufferStore):
            self._store(node, place)
        elif isinstance(node, ir.Evaluate):
            self._evaluate(node.value, place)
        else:
            self.fix(*place.loops)
            self.fix_all(node)

    def _block(self, node: ir.Block, place: Place) -> None:
        for buffer in node.alloc_buffers:
            if buffer.scope in _LOCAL and place.in_grid and not place.loops:
                self.buffers[buffer.data] = buffer
                for axis, extent in enumerate(buffer.shape):
                    self.sizes[buffer.data, axis] = number(extent)
                    if axis:
                        self.fix((buffer.data, axis))
        self.statement(node.body, place)

    def _loop(self, node: ir.For, place: Place) -> None:
        ends = [self.inlined(each) for each in (node.min, node.extent)]
        for each in ends:
            self.expression(each, place)
        if is_grid(node):
            self.grids += not place.in_grid
            self._known.add(node.loop_var)
            self.statement(node.body, Place(in_grid=True))
        elif is_parallel(node):
            self.sizes[node.loop_var] = number(node.extent) if is_zero(node.min) else None
            inner = replace(place, loops=(*place.loops, node.loop_var), in_grid=True)
            self.statement(node.body, inner)
        else:
            if self._loops_in_all(ends, place):
                self.fix(*place.loops)
            self.statement(node.body, place)

    def _branch(self, node: ir.IfThenElse, place: Place) -> None:
        condition = self.inlined(node.condition)
        self.expression(condition, place)
        loops = self._loops_in(condition, place)
        for loop in loops:
            limit = self._limit(condition, loop, place)
            if limit is None or node.else_case is not None:
                self.fix(loop)
            else:
                self.group(loop).limits.append(limit)
                self.group(loop).gates.append(node.condition)
        cases: list[tuple[ir.Stmt, Any]] = [(node.then_case, condition)]
        if node.else_case is not None:
            cases.append((node.else_case, ir.Not("bool", condition)))
        for case, holds in cases:
            inner = replace(place, in_grid=True)
            if loops:
                inner = replace(inner, masks=(*place.masks, holds))
            else:
                inner = replace(inner, uniform=(*place.uniform, holds))
            self.statement(case, inner)

    def _store(self, node: ir.BufferStore, place: Place) -> None:
        if node.predicate is not None:
            self.fix(*place.loops)
        self.expression(self.inlined(node.value), place)
        choice = self._root_choice(node.value)
        if choice is not None:
            condition = self.inlined(choice[0])
            for loop in self._loops_in(condition, place):
                if self._limit(condition, loop, place) is not None:
                    self.group(loop).gates.append(choice[0])
        self._written(node.buffer, [self.inlined(i) for i in node.indices], place)

    def _evaluate(self, call: Any, place: Place) -> None:
        if not isinstance(call, ir.Call):
            self.expression(self.inlined(call), place)
            return
        if not place.loops and self.tile_operation(call, place):
            return
        if call.op in _ADDS and getattr(call.args[0], "op", "") == "tl.access_ptr":
            load = call.args[0].args[0]
            if load.buffer.data not in self.buffers:
                self.expression(self.inlined(call.args[1]), place)
                self._written(load.buffer, [self.inlined(i) for i in load.indices], place)
                return
        self.fix_all(call)

    # -- expressions

    def expression(self, node: Any, place: Place) -> None:
        """Take note of an expression."""
        choice = self._root_choice(node)
        if isinstance(node, ir.BufferLoad):
            self._read(node, place)
        elif choice is not None:
            self._choice(*choice, place)
        elif isinstance(node, ir.Call) and not any(
            isinstance(arg, ir.Region) or getattr(arg, "op", "") in _POINTERS for arg in node.args
        ):
            for arg in node.args:
                self.expression(arg, place)
        elif isinstance(node, ir.Cast):
            self.expression(node.value, place)
        elif isinstance(node, ir.Not):
            self.expression(node.a, place)
        elif isinstance(node, ir.Binary):
            self.expression(node.a, place)
            self.expression(node.b, place)
        elif not isinstance(node, (ir.Var, ir.IntImm, ir.FloatImm, ir.StringImm)):
            self.fix_all(node)

    def _choice(self, condition: Any, if_true: Any, if_false: Any, place: Place) -> None:
        self.expression(condition, place)
        loops = self._loops_in(condition, place)
        gated = set()
        for loop in loops:
            limit = self._limit(condition, loop, place)
            if limit is not None:
                gated.add(loop)
                self.group(loop).limits.append(limit)
        for value, ungated in ((if_true, set(loops) - gated), (if_false, set(loops))):
            self.expression(value, replace(place, ungated=place.ungated | ungated))

    def _read(self, load: ir.BufferLoad, place: Place) -> None:
        for index in load.indices:
            self.expression(index, place)
        if load.predicate is not None:
            self.fix(*place.loops)
        self._access(load.buffer, load.indices, place)
        if load.buffer.data not in self.buffers:
            # Which rows of memory are read is noted as it would be of whole tiles.
            used = self._loops_in_all(load.indices, place)
            self.fix(*(loop for loop in used if loop in place.ungated))

    def _written(self, buffer: ir.Buffer, indices: Sequence[Any], place: Place) -> None:
        for index in indices:
            self.expression(index, place)
        self._access(buffer, indices, place)
        used = self._loops_in_all(indices, place)
        if buffer.data in self.buffers:
            self.fix(*(loop for loop in place.loops if loop not in used))
            return
        for loop in place.loops:
            gates = (self._limit(mask, loop, place) for mask in place.masks)
            if buffer.scope != "global" or all(gate is None for gate in gates):
                self.fix(loop)

    def _access(self, buffer: ir.Buffer, indices: Sequence[Any], place: Place) -> None:
        """An element at indices: rows of a local buffer are a loop's, of others a range."""
        known = self.buffers.get(buffer.data)
        if known is not None and known is not buffer:
            self.fix_buffer(buffer)
            known = None
        if known is None and buffer.scope != "global":
            self.fix(*self._loops_in_all(indices, place))
            return
        seen: set[ir.Var] = set()
        for axis, index in enumerate(indices):
            loops = self._loops_in(index, place)
            if known is not None:
                node = (buffer.data, axis)
                if loops and index is loops[0] and self.sizes[node] == self.sizes[index]:
                    self.unite(node, index)
                    if index in seen:
                        self.fix(index)
                else:
                    self.fix(node, *loops)
            elif loops:
                rest = linear(index).plus(linear(loops[0]), -1)
                mixed = any(loops[0] in set(walk(term)) for term, _ in rest.terms)
                if len(loops) > 1 or loops[0] in seen or mixed:
                    self.fix(*loops)
            seen.update(loops)

    # -- limits

    def _limit(self, condition: Any, loop: ir.Var, place: Place) -> Any:
        """The limit below which a loop is where a condition holds; None where it sets none."""
        if isinstance(condition, ir.And):
            found = self._limit(condition.a, loop, place)
            return found if found is not None else self._limit(condition.b, loop, place)
        sides = _sides(condition)
        if sides is None:
            return None
        small, large, more = sides
        rest = linear(small).plus(linear(loop), -1)
        terms = [term for term, _ in rest.terms]
        if self._loops_in_all([*terms, large], place):
            return None
        limit = linear(large).plus(rest, -1)
        return replace(limit, constant=limit.constant + more).expr

    def _is_invariant(self, node: Any) -> bool:
        """Whether an integer is known where a block starts, and stays the same."""
        if isinstance(node, _LINEAR):
            return self._is_invariant(node.a) and self._is_invariant(node.b)
        if isinstance(node, _DIVISIONS):
            return bool(number(node.b)) and self._is_invariant(node.a)
        if isinstance(node, ir.BufferLoad):
            plain = is_read_only(node, self._usage) and node.buffer.dtype.startswith("int")
            return plain and all(map(self._is_invariant, node.indices))
        return isinstance(node, ir.IntImm) or node in self._known

    def result(self) -> list[LiveRows]:
        """What is trimmed, once all statements are known."""
        found = []
        for group in {id(g): g for g in self.groups.values()}.values():
            sizes = {self.sizes.get(member) for member in group.members}
            data = tuple(m[0] for m in group.members if isinstance(m, tuple))
            rows = sizes.pop() if len(sizes) == 1 else None
            if group.fixed or rows is None or rows < _LEAST or not data:
                continue
            limits: list[Any] = []
            for limit in group.limits:
                if not any(same(limit, known) for known in limits):
                    limits.append(limit)
            if not limits or not all(map(self._is_invariant, limits)):
                continue
            if all(_implied(conditions, limits, rows) for conditions in group.whole):
                loops = tuple(m for m in group.members if not isinstance(m, tuple))
                found.append(LiveRows(rows, tuple(limits), data, loops, tuple(group.gates)))
        return found


def _sides(condition: Any) -> tuple[Any, Any, int] | None:
    """`small`, `large` and `more` of a comparison `small < large + more`; None of another."""
    if not isinstance(condition, ir.Compare) or condition.symbol not in _COMPARISONS:
        return None
    more, swapped = _COMPARISONS[condition.symbol]
    a, b = condition.a, condition.b
    return (b, a, more) if swapped else (a, b, more)


def _implied(conditions: Iterable[Any], limits: Sequence[Any], rows: int) -> bool:
    """Whether under conditions some limit is at least `rows`: then all rows are computed."""
    for condition in conditions:
        for part in _conjuncts(condition):
            sides = _sides(part)
            if sides is None:
                continue
            small, large, more = sides
            room = linear(large).plus(linear(small), -1)  # at least 1 - more
            for limit in limits:
                over = linear(limit).plus(room, -1)
                if not over.terms and over.constant - rows + 1 - more >= 0:
                    return True
    return False


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, ir.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]
