"""Analyzes how a kernel uses its parameters, in its traced IR.

The uses of its values show whether an integer is an index or a length: an index of another tensor,
the bound of a loop, or a comparison. Values are followed through variables, local buffers and
copies. The indices of a load are not part of its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SelectionKind = Literal["index", "start", "within"]

_NONE: frozenset[str] = frozenset()
_Signed = frozenset[tuple[str, int]]
"""The parameters that a value depends on, added (1) or subtracted (-1)."""
_REGION = ("tl.region", "tl.tileop.region")
_READ, _WRITE = 1, 2


@dataclass(frozen=True)
class Selection:
    """A use of the integer tensor `index` to select elements of dimension `dim` of `tensor`.

    Its values are indices (`index`), starts of ranges to which positions are added (`start`), or
    bounds of positions that begin at 0 in every range (`within`).
    """

    index: str
    tensor: str
    dim: int
    kind: SelectionKind


@dataclass(frozen=True)
class Accesses:
    """How a kernel uses its parameters, by name."""

    read: frozenset[str] = _NONE
    written: frozenset[str] = _NONE
    consecutive: frozenset[str] = _NONE
    """Integer vectors that are read at `i` and `i + 1`."""
    selections: frozenset[Selection] = frozenset()
    bounds: frozenset[str] = _NONE
    """Integers that bound a loop, or are compared with a position."""
    tiles: frozenset[tuple[str, int, int]] = frozenset()
    """(parameter, dimension, elements that a step accesses)."""
    products: frozenset[tuple[str, str]] = frozenset()
    """Pairs of parameters that a matrix product multiplies."""

    def renamed(self, names: Mapping[str, str]) -> Accesses:
        """The same with other names, without parameters that `names` lacks."""

        def known(found: frozenset[str]) -> frozenset[str]:
            return frozenset(names[name] for name in found if name in names)

        return Accesses(
            known(self.read),
            known(self.written),
            known(self.consecutive),
            frozenset(
                Selection(names[each.index], names[each.tensor], each.dim, each.kind)
                for each in self.selections
                if each.index in names and each.tensor in names
            ),
            known(self.bounds),
            frozenset((names[name], dim, size) for name, dim, size in self.tiles if name in names),
            frozenset((names[a], names[b]) for a, b in self.products if {a, b} <= names.keys()),
        )

    def tile(self, name: str, dim: int) -> int | None:
        """The largest step over a dimension; None if its elements are accessed one by one."""
        sizes = [size for other, axis, size in self.tiles if (other, axis) == (name, dim)]
        return max(sizes, default=None)


def merged(first: Accesses, second: Accesses) -> Accesses:
    """The accesses of two kernels."""
    return Accesses(
        first.read | second.read,
        first.written | second.written,
        first.consecutive | second.consecutive,
        first.selections | second.selections,
        first.bounds | second.bounds,
        first.tiles | second.tiles,
        first.products | second.products,
    )


def accesses(prim_func: Any) -> Accesses:
    """The accesses of a traced kernel."""
    return _Reader(prim_func).accesses()


class _Reader:
    def __init__(self, prim_func: Any) -> None:
        from tilelang import tvm

        self._tir = tvm.tirx
        self._analyzer = tvm.arith.Analyzer()
        self._equal = tvm.ir.structural_equal
        self._names = {
            prim_func.buffer_map.get(handle, handle): str(
                prim_func.buffer_map[handle].name if handle in prim_func.buffer_map else handle.name
            )
            for handle in prim_func.params
        }
        self._nodes: list[Any] = []
        tvm.tirx.stmt_functor.post_order_visit(prim_func.body, self._nodes.append)
        self._parallel: dict[Any, int] = {}
        self._values: dict[Any, Any] = {}
        self._flows: dict[Any, _Signed] = {}
        self._follow()
        self._inside = dict(self._bounded())
        self._below = list(self._compared())

    # Values --------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Propagate the values of parameters to variables and buffers of the kernel."""
        parts = list(self._definitions())
        for _ in range(len(parts) + 1):
            before = dict(self._flows)
            for target, value in parts:
                self._flows[target] = self._flows.get(target, frozenset()) | self._signed(value)
            if before == self._flows:
                return

    def _definitions(self) -> Iterator[tuple[Any, Any]]:
        for node in self._nodes:
            if isinstance(node, self._tir.For):
                yield node.loop_var, node.min
                extent = _constant(node.extent)
                if int(node.kind) == int(self._tir.ForKind.PARALLEL) and extent is not None:
                    self._parallel[node.loop_var] = extent
            elif isinstance(node, self._tir.BufferStore) and node.buffer not in self._names:
                yield node.buffer, node.value
            elif isinstance(node, self._tir.Call) and _operation(node) == "tl.tileop.copy":
                source, target = (_region(each) for each in node.args[:2])
                if source is not None and target is not None and target.buffer not in self._names:
                    yield target.buffer, source
            elif hasattr(node, "var") and hasattr(node, "value"):
                self._values[node.var] = node.value
                yield node.var, node.value

    def _sources(self, value: Any) -> frozenset[str]:
        """The parameters that a value depends on."""
        return frozenset(name for name, _ in self._signed(value))

    def _signed(self, value: Any) -> _Signed:
        """The same with signs; a position in a range has its start added and subtracted."""
        tir = self._tir
        if isinstance(value, tir.BufferLoad):
            name = self._names.get(value.buffer)
            if name is not None:
                return frozenset([(name, 1)])
            return self._flows.get(value.buffer, frozenset())
        if isinstance(value, tir.Var):
            if value in self._names:
                return frozenset([(self._names[value], 1)])
            return self._flows.get(value, frozenset())
        if _comparison(value) is not None:
            return frozenset()
        parts = list(_operands(value))
        if isinstance(value, tir.Call) and _operation(value).endswith("if_then_else"):
            parts = parts[1:]
        found = [self._signed(part) for part in parts]
        if type(value).__name__ == "Sub":
            found[1] = frozenset((name, -sign) for name, sign in found[1])
        return frozenset().union(*found)

    def _bounded(self) -> Iterator[tuple[Any, frozenset[str]]]:
        """Loop variables that begin at 0, with the parameters that bound them."""
        for node in self._nodes:
            if isinstance(node, self._tir.For) and not self._sources(node.min):
                yield node.loop_var, self._sources(node.extent)

    def _compared(self) -> Iterator[tuple[Any, frozenset[str]]]:
        """Positions that are compared with a length, and the parameters of the length."""
        for node in self._nodes:
            if _comparison(node) not in ("LT", "GT"):
                continue
            lesser, greater = (node.a, node.b) if _comparison(node) == "LT" else (node.b, node.a)
            bounds = self._signed(greater)
            lengths = {name for name, _ in bounds}
            if lengths and not self._signed(lesser) and type(greater).__name__ != "Add":
                yield _uncast(lesser), frozenset(lengths)

    # Uses ----------------------------------------------------------------------------------

    def accesses(self) -> Accesses:
        """All accesses."""
        read, written = self._accessed()
        return Accesses(
            read,
            written,
            self._consecutive(),
            frozenset(self._selections()),
            frozenset(self._bounds()),
            frozenset(self._tiles()),
            frozenset(self._products()),
        )

    def _accessed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The parameters that are read, and those that are written."""
        in_regions: list[Any] = []
        loads: list[Any] = []
        read: set[Any] = set()
        written: set[Any] = set()
        for node in self._nodes:
            if isinstance(node, self._tir.BufferStore):
                written.add(node.buffer)
            elif isinstance(node, self._tir.BufferLoad):
                loads.append(node)
            elif isinstance(node, self._tir.Call) and node.args:
                first = node.args[0]
                if not isinstance(first, self._tir.BufferLoad):
                    continue
                if _operation(node) in _REGION:
                    in_regions.append(first)
                    mode = int(node.args[1])
                    if mode & _READ:
                        read.add(first.buffer)
                    if mode & _WRITE:
                        written.add(first.buffer)
                elif _operation(node) in ("tl.access_ptr", "tirx.address_of"):
                    written.add(first.buffer)  # The target of an atomic operation.
        for load in loads:
            if not any(load.same_as(seen) for seen in in_regions):
                read.add(load.buffer)
        names = self._names
        return (
            frozenset(names[buffer] for buffer in read if buffer in names),
            frozenset(names[buffer] for buffer in written if buffer in names),
        )

    def _indexed(self) -> Iterator[tuple[str, int, Any]]:
        """All indices of parameters: (name, dimension, index)."""
        for node in self._nodes:
            if isinstance(node, self._tir.BufferLoad | self._tir.BufferStore):
                name = self._names.get(node.buffer)
                if name is not None:
                    for dim, index in enumerate(node.indices):
                        yield name, dim, index

    def _consecutive(self) -> frozenset[str]:
        found: dict[str, list[Any]] = {}
        for node in self._nodes:
            if isinstance(node, self._tir.BufferLoad) and len(node.indices) == 1:
                name = self._names.get(node.buffer)
                if name is not None and str(node.buffer.dtype).startswith("int"):
                    found.setdefault(name, []).append(node.indices[0])
        return frozenset(
            name
            for name, indices in found.items()
            if any(self._follows(first, second) for first, second in permutations(indices, 2))
        )

    def _follows(self, first: Any, second: Any) -> bool:
        if first.dtype != second.dtype:
            return False
        return _constant(self._analyzer.simplify(second - first)) == 1

    def _selections(self) -> Iterator[Selection]:
        compared = []
        for node in self._nodes:
            if _comparison(node) == "EQ":
                compared += [(node.a, node.b), (node.b, node.a)]
        for name, dim, index in self._indexed():
            yield from self._selected(name, dim, index)
            for value, other in compared:
                if self._equal(_uncast(other), _uncast(index)):
                    for source in self._sources(value) - {name}:
                        yield Selection(source, name, dim, "index")

    def _selected(self, name: str, dim: int, index: Any) -> Iterator[Selection]:
        signed = self._signed(index)
        for source in {other for other, _ in signed} - {name}:
            if (source, -1) in signed:
                yield Selection(source, name, dim, "within")
            else:
                yield Selection(source, name, dim, "index" if self._is_alone(index) else "start")
        if not signed:
            for position, sources in self._below:
                if self._equal(position, _uncast(index)):
                    for source in sources - {name}:
                        yield Selection(source, name, dim, "within")
        for leaf in self._expanded(index):
            if type(leaf).__name__ == "Var":
                inside = self._inside.get(leaf, _NONE)
                for source in inside - {name} - {other for other, _ in signed}:
                    yield Selection(source, name, dim, "within")

    def _is_alone(self, index: Any) -> bool:
        """Whether an index is a value of a parameter, plus constants at most."""
        varying = [leaf for leaf in self._expanded(index) if _constant(leaf) is None]
        return len(varying) == 1

    def _expanded(self, value: Any) -> Iterator[Any]:
        """The leaves of a value, with variables replaced by their definitions."""
        for leaf in _leaves(value):
            if leaf in self._values:
                yield from self._expanded(self._values[leaf])
            else:
                yield leaf

    def _bounds(self) -> Iterator[str]:
        for node in self._nodes:
            if isinstance(node, self._tir.For):
                yield from self._sources(node.extent)
            elif _comparison(node) in ("LT", "LE", "GT", "GE"):
                yield from self._sources(node.a)
                yield from self._sources(node.b)

    def _tiles(self) -> Iterator[tuple[str, int, int]]:
        for node in self._nodes:
            load = _region(node) if isinstance(node, self._tir.Call) else None
            if load is None or load.buffer not in self._names:
                continue
            for dim, extent in enumerate(node.args[2:]):
                size = _constant(extent)
                if size is not None and size > 1:
                    yield self._names[load.buffer], dim, size
        for name, dim, index in self._indexed():
            for leaf in self._expanded(index):
                size = self._parallel.get(leaf) if isinstance(leaf, self._tir.Var) else None
                if size is not None and size > 1:
                    yield name, dim, size

    def _products(self) -> Iterator[tuple[str, str]]:
        for node in self._nodes:
            if not isinstance(node, self._tir.Call) or "gemm" not in _operation(node):
                continue
            factors = [_region(each) for each in node.args[:2]]
            if None in factors:
                continue
            for first in self._sources(factors[0]):
                for second in self._sources(factors[1]):
                    yield first, second


def _operation(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def _region(node: Any) -> Any:
    """The first element of a region; None for other nodes."""
    if type(node).__name__ == "BufferLoad":
        return node
    if type(node).__name__ == "Call" and _operation(node) in _REGION:
        return node.args[0]
    return None


def _comparison(node: Any) -> str | None:
    kind = type(node).__name__
    return kind if kind in {"EQ", "NE", "LT", "LE", "GT", "GE"} else None


def _operands(value: Any) -> Iterator[Any]:
    kind = type(value).__name__
    if kind == "Call":
        yield from (each for each in value.args if type(each).__name__ != "StringImm")
    elif kind == "Select":
        yield from (value.true_value, value.false_value)
    elif kind == "Cast":
        yield value.value
    else:
        for field in ("a", "b"):
            if hasattr(value, field):
                yield getattr(value, field)


def _leaves(value: Any) -> Iterator[Any]:
    if type(value).__name__ == "BufferLoad":
        yield value
        return
    parts = list(_operands(value))
    if not parts:
        yield value
    for part in parts:
        yield from _leaves(part)


def _uncast(value: Any) -> Any:
    while type(value).__name__ == "Cast":
        value = value.value
    return value


def _constant(value: Any) -> int | None:
    return int(value) if type(value).__name__ == "IntImm" else None
