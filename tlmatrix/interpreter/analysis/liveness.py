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
from tlmatrix.interpreter.ir.walk import same, substitute, walk

from .constants import is_zero, number
from .linear import linear
from .loops import is_grid, is_parallel
from .row_groups import RowGroups
from .usage import is_read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["LiveRows", "live_rows"]

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


@dataclass(frozen=True)
class _Place:
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


def live_rows(
    kernel: ir.Kernel,
    usage: Mapping[ir.Var, frozenset[str]],
    root_choice: Callable[[Any], tuple[Any, Any, Any] | None],
) -> list[LiveRows]:
    """The rows of a kernel's tiles that may be left out."""
    found = _Analysis(kernel, usage, root_choice)
    found.statement(kernel.body, _Place())
    return found.result() if found.grids == 1 else []


class _Analysis(RowGroups):
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
        self._values: dict[ir.Var, Any] = {}
        self._known: set[Any] = set(kernel.params)
        for buffer in kernel.buffer_map.values():
            nodes = walk(*buffer.shape, *buffer.strides)
            self._known |= {node for node in nodes if isinstance(node, ir.Var)}

    # -- expressions in force

    def _fix_all(self, node: Any) -> None:
        """All that an expression or statement names: nothing is known of what it does."""
        for child in walk(self._inlined(node) if isinstance(node, ir.Expr) else node):
            if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region)):
                self.fix_buffer(child.buffer)
            elif isinstance(child, ir.Var):
                if child in self.sizes:
                    self.fix(child)
                if child in self.buffers:
                    self.fix_buffer(self.buffers[child])

    def _inlined(self, node: Any) -> Any:
        """An expression with the values of what is bound in it."""
        return substitute(node, self._values) if self._values else node

    @staticmethod
    def _loops_in(node: Any, place: _Place) -> list[ir.Var]:
        """The parallel loops in force that an expression depends on."""
        named = set(walk(node)) if place.loops else set()
        return [loop for loop in place.loops if loop in named]

    def _loops_in_all(self, nodes: Iterable[Any], place: _Place) -> set[ir.Var]:
        return {loop for node in nodes for loop in self._loops_in(node, place)}

    # -- statements

    def statement(self, node: Any, place: _Place) -> None:
        """Take note of one statement."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.statement(child, place)
        elif isinstance(node, ir.Block):
            self._block(node, place)
        elif isinstance(node, ir.AttrStmt):
            self.statement(node.body, place)
        elif isinstance(node, ir.Bind):
            value = self._inlined(node.value)
            self._expression(value, place)
            self._values[node.var] = value
        elif isinstance(node, ir.For):
            self._loop(node, place)
        elif isinstance(node, ir.While):
            condition = self._inlined(node.condition)
            self.fix(*self._loops_in(condition, place))
            self._expression(condition, place)
            self.statement(node.body, place)
        elif isinstance(node, ir.IfThenElse):
            self._branch(node, place)
        elif isinstance(node, ir.BufferStore):
            self._store(node, place)
        elif isinstance(node, ir.Evaluate):
            self._evaluate(node.value, place)
        else:
            self.fix(*place.loops)
            self._fix_all(node)

    def _block(self, node: ir.Block, place: _Place) -> None:
        for buffer in node.alloc_buffers:
            if buffer.scope in _LOCAL and place.in_grid and not place.loops:
                self.buffers[buffer.data] = buffer
                for axis, extent in enumerate(buffer.shape):
                    self.sizes[buffer.data, axis] = number(extent)
                    if axis:
                        self.fix((buffer.data, axis))
        self.statement(node.body, place)

    def _loop(self, node: ir.For, place: _Place) -> None:
        ends = [self._inlined(each) for each in (node.min, node.extent)]
        for each in ends:
            self._expression(each, place)
        if is_grid(node):
            self.grids += not place.in_grid
            self._known.add(node.loop_var)
            self.statement(node.body, _Place(in_grid=True))
        elif is_parallel(node):
            self.sizes[node.loop_var] = number(node.extent) if is_zero(node.min) else None
            inner = replace(place, loops=(*place.loops, node.loop_var), in_grid=True)
            self.statement(node.body, inner)
        else:
            if self._loops_in_all(ends, place):
                self.fix(*place.loops)
            self.statement(node.body, place)

    def _branch(self, node: ir.IfThenElse, place: _Place) -> None:
        condition = self._inlined(node.condition)
        self._expression(condition, place)
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

    def _store(self, node: ir.BufferStore, place: _Place) -> None:
        if node.predicate is not None:
            self.fix(*place.loops)
        self._expression(self._inlined(node.value), place)
        choice = self._root_choice(node.value)
        if choice is not None:
            condition = self._inlined(choice[0])
            for loop in self._loops_in(condition, place):
                if self._limit(condition, loop, place) is not None:
                    self.group(loop).gates.append(choice[0])
        self._written(node.buffer, [self._inlined(i) for i in node.indices], place)

    def _evaluate(self, call: Any, place: _Place) -> None:
        if not isinstance(call, ir.Call):
            self._expression(self._inlined(call), place)
            return
        tile = _TILES.get(call.op)
        if tile is not None and not place.loops and tile(self, call, place):
            return
        if call.op in _ADDS and getattr(call.args[0], "op", "") == "tl.access_ptr":
            load = call.args[0].args[0]
            if load.buffer.data not in self.buffers:
                self._expression(self._inlined(call.args[1]), place)
                self._written(load.buffer, [self._inlined(i) for i in load.indices], place)
                return
        self._fix_all(call)

    # -- expressions

    def _expression(self, node: Any, place: _Place) -> None:
        choice = self._root_choice(node)
        if isinstance(node, ir.BufferLoad):
            self._read(node, place)
        elif choice is not None:
            self._choice(*choice, place)
        elif isinstance(node, ir.Call) and not any(
            isinstance(arg, ir.Region) or getattr(arg, "op", "") in _POINTERS for arg in node.args
        ):
            for arg in node.args:
                self._expression(arg, place)
        elif isinstance(node, ir.Cast):
            self._expression(node.value, place)
        elif isinstance(node, ir.Not):
            self._expression(node.a, place)
        elif isinstance(node, ir.Binary):
            self._expression(node.a, place)
            self._expression(node.b, place)
        elif not isinstance(node, (ir.Var, ir.IntImm, ir.FloatImm, ir.StringImm)):
            self._fix_all(node)

    def _choice(self, condition: Any, if_true: Any, if_false: Any, place: _Place) -> None:
        self._expression(condition, place)
        loops = self._loops_in(condition, place)
        gated = set()
        for loop in loops:
            limit = self._limit(condition, loop, place)
            if limit is not None:
                gated.add(loop)
                self.group(loop).limits.append(limit)
        for value, ungated in ((if_true, set(loops) - gated), (if_false, set(loops))):
            self._expression(value, replace(place, ungated=place.ungated | ungated))

    def _read(self, load: ir.BufferLoad, place: _Place) -> None:
        for index in load.indices:
            self._expression(index, place)
        if load.predicate is not None:
            self.fix(*place.loops)
        self._access(load.buffer, load.indices, place)
        if load.buffer.data not in self.buffers:
            # Which rows of memory are read is noted as it would be of whole tiles.
            used = self._loops_in_all(load.indices, place)
            self.fix(*(loop for loop in used if loop in place.ungated))

    def _written(self, buffer: ir.Buffer, indices: Sequence[Any], place: _Place) -> None:
        for index in indices:
            self._expression(index, place)
        self._access(buffer, indices, place)
        used = self._loops_in_all(indices, place)
        if buffer.data in self.buffers:
            self.fix(*(loop for loop in place.loops if loop not in used))
            return
        for loop in place.loops:
            gates = (self._limit(mask, loop, place) for mask in place.masks)
            if buffer.scope != "global" or all(gate is None for gate in gates):
                self.fix(loop)

    def _access(self, buffer: ir.Buffer, indices: Sequence[Any], place: _Place) -> None:
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

    # -- tile operations; each returns whether it knows what is done

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
            if is_zero(self._inlined(index)) and number(extent) == self.sizes[node]:
                nodes.append(node)
            else:
                self.fix(node)
                nodes.append(None)
        return nodes

    def _copy(self, call: ir.Call, place: _Place) -> bool:
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
                self._expression(self._inlined(index), place)
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

    def _fill(self, call: ir.Call, place: _Place) -> bool:
        self._dims(call.args[0])
        for index in (*call.args[0].indices, call.args[1]):
            self._expression(self._inlined(index), place)
        return True

    def _gemm(self, call: ir.Call, place: _Place) -> bool:
        del place
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
            self._fix_all(rest)
        return True

    def _reduce(self, call: ir.Call, place: _Place) -> bool:
        del place
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

    # -- limits

    def _limit(self, condition: Any, loop: ir.Var, place: _Place) -> Any:
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


_TILES: dict[str, Callable[[_Analysis, ir.Call, _Place], bool]] = {
    "tl.tileop.copy": _Analysis._copy,  # noqa: SLF001  # of this module
    "tl.tileop.async_copy": _Analysis._copy,  # noqa: SLF001
    "tl.tileop.fill": _Analysis._fill,  # noqa: SLF001
    "tl.tileop.gemm": _Analysis._gemm,  # noqa: SLF001
    "tl.tileop.reduce": _Analysis._reduce,  # noqa: SLF001
}


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
