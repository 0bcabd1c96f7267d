"""How a kernel uses its parameters, read from the model of its accesses.

The uses of its values show whether an integer is an index or a length: an index of another tensor,
the bound of a loop, or a comparison. The indices of a load are not part of its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tlmatrix.interpreter.analysis.accesses import accesses_of
from tlmatrix.interpreter.analysis.expressions import add_terms, number
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.walk import children, same, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

SelectionKind = Literal["index", "start", "within"]
Names = Mapping[str, tuple[str, Mapping[int, int]]]
"""The names of parameters of a kernel elsewhere, with the dimension there of each of theirs."""

_NONE: frozenset[str] = frozenset()
_PLAIN = ("written", "updated", "added", "consecutive", "bounds")
"""The fields of `Uses` that are names."""


class Selection(NamedTuple):
    """A use of the integer tensor `source` to select elements of dimension `dim` of `tensor`.

    Its values are indices (`index`), starts of ranges to which positions are added (`start`), or
    bounds of positions that begin at 0 in every range (`within`).
    """

    source: str
    tensor: str
    dim: int
    kind: SelectionKind


@dataclass(frozen=True)
class Uses:
    """How a kernel uses its parameters, by name."""

    written: frozenset[str] = _NONE
    updated: frozenset[str] = _NONE
    """Parameters whose elements are read before any is written."""
    added: frozenset[str] = _NONE
    """Parameters that atomics add to."""
    consecutive: frozenset[str] = _NONE
    """Integer vectors that are read at `i` and `i + 1`."""
    selections: frozenset[Selection] = frozenset()
    bounds: frozenset[str] = _NONE
    """Integers that bound a loop, or are compared with a position."""
    tiles: frozenset[tuple[str, int, int]] = frozenset()
    """(parameter, dimension, elements that a step accesses)."""
    products: frozenset[tuple[str, str]] = frozenset()
    """Pairs of parameters that a matrix product multiplies."""

    def renamed(self, names: Names) -> Uses:
        """The same with other names and dimensions, without parameters that `names` lacks."""

        def place(name: str, dim: int) -> tuple[str, int] | None:
            other, dims = names.get(name, ("", {}))
            return (other, dims[dim]) if dim in dims else None

        plain = {
            field: frozenset(names[name][0] for name in getattr(self, field) if name in names)
            for field in _PLAIN
        }
        pairs = ((names[a][0], names[b][0]) for a, b in self.products if {a, b} <= {*names})
        selections = (
            Selection(names[each.source][0], *there, each.kind)
            for each in self.selections
            if each.source in names and (there := place(each.tensor, each.dim))
        )
        tiles = ((*there, size) for name, dim, size in self.tiles if (there := place(name, dim)))
        return Uses(
            **plain,
            selections=frozenset(selections),
            tiles=frozenset(tiles),
            products=frozenset(pairs),
        )

    def tile(self, name: str, dim: int) -> int | None:
        """The largest step over a dimension; None if its elements are accessed one by one."""
        sizes = [size for other, axis, size in self.tiles if (other, axis) == (name, dim)]
        return max(sizes, default=None)


_SETS = tuple(each.name for each in fields(Uses))


def merged(first: Uses, second: Uses) -> Uses:
    """The uses of two kernels, of which the first runs before."""
    both = [getattr(first, name) | getattr(second, name) for name in _SETS]
    found = Uses(*both)
    return replace(found, updated=first.updated | (second.updated - first.written))


def uses_of(prim_func: Any) -> Uses:
    """The uses of a traced kernel."""
    return _Reader(read_all(saved(prim_func))).uses()


class _Reader:
    def __init__(self, kernel: ir.Kernel) -> None:
        self._model = accesses_of(kernel)
        parameters = [kernel.buffer_map.get(each, each) for each in kernel.params]
        self._names: dict[Any, str] = {each: each.name for each in parameters}
        self._ranges = self._model.variables
        self._origins = self._model.flows | {
            var: [each.low, *self._model.flows.get(var, ())] for var, each in self._ranges.items()
        }
        self._found = [a for a in self._model.found if a.buffer in self._names]
        self._claimed = [claim.condition for claim in self._model.claims]

    def uses(self) -> Uses:
        """All uses."""
        added = {a.buffer for a in self._found if a.kind not in ("read", "write")}
        return Uses(
            frozenset(self._names[a.buffer] for a in self._found if a.kind != "read"),
            frozenset(self._updated()),
            frozenset(self._names[buffer] for buffer in added),
            self._consecutive(),
            frozenset(self._selections()),
            frozenset(self._bounds()),
            frozenset(self._tiles()),
            frozenset(self._products()),
        )

    def _updated(self) -> Iterator[str]:
        first: dict[str, str] = {}
        for access in self._found:
            first.setdefault(self._names[access.buffer], access.kind)
        written = {self._names[a.buffer] for a in self._found if a.kind == "write"}
        yield from (name for name, kind in first.items() if kind == "read" and name in written)

    # Values --------------------------------------------------------------------------------

    def _sources(self, value: Any) -> frozenset[str]:
        """The parameters that a value depends on."""
        return frozenset(name for name, _ in self._terms(value, 1, set()))

    def _terms(self, node: Any, sign: int, seen: set[tuple[Any, int]]) -> Iterator[tuple[str, int]]:
        """The same, added (1) or subtracted (-1); a position has its start added."""
        source = getattr(node, "buffer", node)
        if source in self._names:
            yield self._names[source], sign
        elif source is node and not isinstance(node, (ir.Var, ir.Compare)):
            for part in _parts(node):
                subtracted = isinstance(node, ir.Sub) and part is node.b
                yield from self._terms(part, -sign if subtracted else sign, seen)
        elif (var := getattr(source, "data", source), sign) not in seen:
            seen.add((var, sign))
            for each in self._origins.get(var, ()):
                yield from self._terms(each, sign, seen)

    # Uses ----------------------------------------------------------------------------------

    def _consecutive(self) -> frozenset[str]:
        """Integer vectors of which two indices differ by one."""
        indices: dict[str, list[Any]] = {}
        read = [(a.buffer, a.index) for a in self._found if a.kind == "read"]
        loads = [n for n in walk(*self._claimed) if isinstance(n, ir.BufferLoad)]
        for buffer, index in (*read, *((load.buffer, load.indices) for load in loads)):
            if len(index) == 1 and buffer.dtype.startswith("int"):
                indices.setdefault(self._names.get(buffer, ""), []).append(index[0])
        pairs = ((name, two) for name, each in indices.items() for two in permutations(each, 2))
        return frozenset(name for name, two in pairs if name and _follow(*two))

    def _selections(self) -> Iterator[Selection]:
        """Uses of integers to select elements."""
        for access in self._found:
            name = self._names[access.buffer]
            for dim, (index, _) in enumerate(access.box):
                for source, kind in self._selected(index):
                    if source != name:
                        yield Selection(source, name, dim, kind)

    def _selected(self, index: ir.Expr) -> Iterator[tuple[str, SelectionKind]]:
        signed = set(self._terms(index, 1, set()))
        leaves = [leaf for leaf in _leaves(index) if number(leaf) is None]
        for source in {name for name, _ in signed}:
            if (source, -1) in signed:
                yield source, "within"
            else:
                yield source, "index" if len(leaves) == 1 else "start"
        for node in self._model.comparisons:
            for other, value in ((node.a, node.b), (node.b, node.a)):
                if node.symbol == "==" and same(other, index):
                    yield from ((source, "index") for source in self._sources(value))
            lesser, greater = (node.a, node.b) if node.symbol == "<" else (node.b, node.a)
            is_length = node.symbol in "<>" and not isinstance(greater, ir.Add)
            if is_length and not signed and same(lesser, index):
                yield from ((source, "within") for source in self._sources(greater))
        for leaf in leaves:
            found = self._ranges.get(leaf)
            if found is not None and found.extent is not None and not self._sources(found.low):
                inside = self._sources(found.extent) - {name for name, _ in signed}
                yield from ((source, "within") for source in inside)

    def _bounds(self) -> Iterator[str]:
        for each in self._ranges.values():
            if each.extent is not None:
                yield from self._sources(each.extent)
        for node in (*self._model.comparisons, *walk(*self._claimed)):
            if isinstance(node, ir.Compare) and node.symbol not in ("==", "!="):
                yield from (*self._sources(node.a), *self._sources(node.b))

    def _tiles(self) -> Iterator[tuple[str, int, int]]:
        for access in self._found:
            for dim, (index, extent) in enumerate(access.box):
                loops = [self._ranges[leaf] for leaf in _added(index) if leaf in self._ranges]
                extents = [extent, *(each.extent for each in loops if each.kind == "parallel")]
                for size in map(number, extents):
                    if size is not None and size > 1:
                        yield self._names[access.buffer], dim, size

    def _products(self) -> Iterator[tuple[str, str]]:
        factors: list[frozenset[str]] = []
        for access in self._model.found:
            if "gemm" not in access.operation:
                continue
            if access.kind == "read":
                factors.append(self._sources(ir.BufferLoad("", access.buffer, ())))
                continue
            yield from product(*factors[:2])
            factors = []


def _follow(first: ir.Expr, second: ir.Expr) -> bool:
    """Whether an index is the next one after another."""
    terms: dict[Any, int] = {}
    gap = add_terms(second, 1, terms) + add_terms(first, -1, terms)
    return gap == 1 and all(
        sum(factor for other, factor in terms.items() if same(atom, other)) == 0 for atom in terms
    )


def _leaves(value: Any) -> Iterator[Any]:
    parts = _parts(value)
    yield from (leaf for part in parts for leaf in _leaves(part)) if parts else [value]


def _added(value: Any) -> Iterator[Any]:
    """The leaves of an index without those in its quotients and remainders, as of a flat index."""
    if not isinstance(value, ir.FloorDiv | ir.FloorMod | ir.Div | ir.Mod):
        parts = _parts(value)
        yield from (leaf for part in parts for leaf in _added(part)) if parts else [value]


def _parts(value: Any) -> list[Any]:
    """What a value is computed of, without its conditions and the indices of loads."""
    parts = [] if isinstance(value, ir.BufferLoad) else list(children(value))
    conditional = isinstance(value, ir.Select) or getattr(value, "op", "") == "tirx.if_then_else"
    return parts[1:] if conditional else parts
