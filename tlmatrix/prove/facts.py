"""Facts about the arguments of a kernel: what the host code passes, in every launch.

A fact is a pattern (offsets of sequences, disjoint ranges, indices below a dim, …) that all
observed launches of a kernel follow. Where the tensor is one of the problem's, the spec declares
it; else host code computed it, and the report says in how many launches it was observed. A fact
that one launch contradicts is no fact.

No quantifier is given to Z3: a fact is instantiated at the elements that a query's terms load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import z3

from tlmatrix.interpreter.analysis.expressions import NEGATED, evaluate, number
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import text_of, walk
from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Accesses
    from tlmatrix.spec.expr.evaluation import Node

    from .terms import Load, Terms

    Array = np.ndarray[Any, Any]
    Sizes = dict[ir.Expr, Array]

_ARITHMETIC: dict[str, type[ir.Binary]] = {
    "+": ir.Add, "-": ir.Sub, "*": ir.Mul, "//": ir.FloorDiv, "%": ir.FloorMod
}  # fmt: skip
BLOCKS = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512)
"""Sizes of blocks that sizes are rounded up to."""


@dataclass(frozen=True)
class Observation:
    """The arguments of one launch.

    Attributes:
        symbols: symbolic dims and integer scalars by name.
        tables: integer tensors by the parameter's name.
        declared: names of parameters that are tensors of the problem.
        unwritten: parameters whose memory held nothing before the launch.
        parameters: the names of all parameters.
    """

    symbols: Mapping[str, int]
    tables: Mapping[str, Array]
    declared: frozenset[str] = frozenset()
    unwritten: frozenset[str] = frozenset()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Fact:
    """What all launches have in common.

    Attributes:
        words: the fact, for reports.
        source: "spec" or "host".
        launches: how many launches were observed.
    """

    words: str
    source: str
    launches: int

    def __str__(self) -> str:
        if self.source == "spec":
            return self.words
        return f"{self.words} (in all {self.launches} observed launches)"

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """What it says of the elements loaded."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeFact(Fact):
    """A condition on symbolic dims and scalars."""

    condition: ir.Expr

    def instances(self, terms: Terms, _loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """The condition."""
        yield terms.boolean(self.condition)


@dataclass(frozen=True)
class Column:
    """A column of an integer tensor of two dims, or all of a tensor."""

    table: ir.Buffer
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.table.name}[i{'' if self.number is None else f', {self.number}'}]"

    def at(self, terms: Terms, row: z3.ArithRef) -> z3.ArithRef:
        """The element of a row."""
        second = [] if self.number is None else [z3.IntVal(self.number)]
        return terms.load(self.table, [row, *second])

    def row(self, load: ir.BufferLoad) -> ir.Expr | None:
        """The row of an element that is loaded; None if it is not of this column."""
        row, *second = load.indices
        numbers = [] if self.number is None else [self.number]
        own = load.buffer.data is self.table.data and [number(each) for each in second] == numbers
        return row if own else None


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFact(Fact):
    """A fact about a column of an integer tensor."""

    column: Column

    def own(self, terms: Terms, loads: Sequence[Load]) -> Iterator[tuple[Load, z3.BoolRef]]:
        """The elements of the tensor among those loaded, and whether each is one of the column."""
        table, number = self.column.table, self.column.number
        shape = [terms.integer(extent) for extent in table.shape]
        for load in loads:
            if load.buffer.data is table.data:
                tests = [z3.And(i >= 0, i < n) for i, n in zip(load.indices, shape, strict=True)]
                tests += [] if number is None else [load.indices[-1] == number]
                yield load, z3.And(tests)


@dataclass(frozen=True, kw_only=True, eq=False)
class Within(TableFact):
    """Elements between bounds."""

    least: int | None = None
    most: ir.Expr | None = None

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each element and bound."""
        for load, here in self.own(terms, loads):
            if self.least is not None:
                yield z3.Implies(here, load.value >= self.least)
            if self.most is not None:
                yield z3.Implies(here, load.value <= terms.integer(self.most))


@dataclass(frozen=True, kw_only=True, eq=False)
class Offsets(TableFact):
    """Offsets of packed sequences: 0 first, never decreasing, the end last."""

    end: ir.Expr | None

    disjoint = True

    def rows(self, terms: Terms, sequence: z3.ArithRef) -> tuple[z3.ArithRef, z3.ArithRef]:
        """The first row of a sequence, and that after its last."""
        return self.column.at(terms, sequence), self.column.at(terms, sequence + 1)

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two elements."""
        own = list(self.own(terms, loads))
        last = terms.integer(self.column.table.shape[0]) - 1
        ends = [(z3.IntVal(0), z3.IntVal(0))]
        if self.end is not None:
            ends.append((last, terms.integer(self.end)))
        for load, here in own:
            for place, value in ends:
                yield z3.Implies(load.indices[0] == place, load.value == value)
            yield z3.Implies(here, load.value >= 0)
            if self.end is not None:
                yield z3.Implies(here, load.value <= ends[-1][1])
        for (a, one), (b, other) in permutations(own, 2):
            before = z3.And(one, other, a.indices[0] <= b.indices[0])
            yield z3.Implies(before, a.value <= b.value)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps(TableFact):
    """Neighbours that differ by at most a size: no sequence is longer."""

    most: ir.Expr

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two neighbours."""
        most = terms.integer(self.most)
        for (a, one), (b, other) in permutations(self.own(terms, loads), 2):
            neighbours = z3.And(one, other, b.indices[0] == a.indices[0] + 1)
            yield z3.Implies(neighbours, b.value - a.value <= most)


@dataclass(frozen=True, kw_only=True, eq=False)
class Intervals(TableFact):
    """Rows of starts, which are the column, and lengths that are intervals inside a dim.

    Attributes:
        disjoint: whether no two have an element in common.
        whole: whether they are all of the dim.
    """

    lengths: Column
    end: ir.Expr
    disjoint: bool
    whole: bool

    def rows(self, terms: Terms, row: z3.ArithRef) -> tuple[z3.ArithRef, z3.ArithRef]:
        """The first element of an interval, and that after its last."""
        start, length = self.column.at(terms, row), self.lengths.at(terms, row)
        return start, start + length

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two rows."""
        data = (self.column.table.data, self.lengths.table.data)
        own = (load.indices[0] for load in loads if load.buffer.data in data)
        rows = {row.get_id(): row for row in own}
        count, end = terms.integer(self.column.table.shape[0]), terms.integer(self.end)
        parts = [
            (row, z3.And(row >= 0, row < count), *self.rows(terms, row)) for row in rows.values()
        ]
        for _, here, first, after in parts:
            yield z3.Implies(here, z3.And(first >= 0, after >= first, after <= end))
        for (i, one, a, b), (j, other, c, d) in combinations(parts, 2) if self.disjoint else ():
            apart = z3.Or(b <= c, d <= a, a == b, c == d)
            yield z3.Implies(z3.And(one, other, i != j), apart)


@dataclass(frozen=True, kw_only=True, eq=False)
class Distinct(TableFact):
    """Elements of which no two are equal, but for negative ones."""

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two elements."""
        for (a, one), (b, other) in combinations(self.own(terms, loads), 2):
            same = z3.And([x == y for x, y in zip(a.indices, b.indices, strict=True)])
            equal = z3.And(one, other, a.value == b.value, a.value >= 0)
            yield z3.Implies(equal, same)


def symbols_of(kernel: ir.Kernel) -> dict[str, ir.Var]:
    """The symbolic dims and integer scalars of a kernel, by name."""
    dims = (extent for buffer in kernel.buffer_map.values() for extent in buffer.shape)
    integers = (v for v in kernel.params if v.dtype.startswith(("int", "uint")))
    return {node.name: node for node in (*walk(*dims), *integers) if isinstance(node, ir.Var)}


def facts_of(
    accesses: Accesses,
    tables: Sequence[ir.Buffer],
    observed: Sequence[Observation],
    alike: Sequence[Observation],
    given: Iterable[str],
) -> list[Fact]:
    """The facts that all observed launches of a kernel agree on.

    Args:
        accesses: the model of the kernel.
        tables: its parameters that are integer tensors it only reads.
        observed: its launches.
        alike: those of all kernels of its name, which are compiled for other options; what they
            have in common holds for it, too.
        given: conditions on sizes that the spec states; one is a fact where the kernel has all its
            names, and every launch agrees.
    """
    kernel = accesses.kernel
    found: dict[str, Fact] = {}
    for source, launches, tests in (
        ("spec", observed, _given_conditions(kernel, given, observed)),
        ("host", observed, _size_conditions(_sizes(kernel, observed))),
        ("host", alike, _size_conditions(_sizes(kernel, alike))),
    ):
        for test in tests:
            words = text_of(test)
            about: dict[str, Any] = {"source": source, "launches": len(launches)}
            found.setdefault(words, SizeFact(words=words, condition=test, **about))
    return [*found.values(), *_facts_of_tables(accesses, tables, observed, alike)]


def _constant(value: int) -> ir.IntImm:
    return ir.IntImm("int32", value)


# Sizes --------------------------------------------------------------------------------------------


def _sizes(kernel: ir.Kernel, observed: Sequence[Observation]) -> Sizes:
    """The dims that are no constants, and the integer scalars, with their values in launches."""
    dims = [extent for buffer in kernel.buffer_map.values() for extent in buffer.shape]
    texts = {text_of(each): each for each in (*dims, *symbols_of(kernel).values())}
    found: Sizes = {}
    for size in texts.values():
        if number(size) is None:  # a table's entries need not fit a constant
            with suppress(Unsupported):
                found[size] = np.array([int(evaluate(size, each.symbols)) for each in observed])
    return found


def _size_conditions(sizes: Sizes) -> Iterator[ir.Expr]:
    """Conditions that sizes satisfy in all launches, of the forms in which host code computes."""
    for size, values in sizes.items():
        least = int(values.min())
        if least >= 0:
            yield ir.Compare("bool", size, _constant(min(least, 1)), ">=")
    varied = {size: values for size, values in sizes.items() if len(set(values.tolist())) > 1}
    for (a, wanted), (b, values) in permutations(varied.items(), 2):
        others = {c: z for c, z in varied.items() if c not in (a, b)}
        for computed, results in _computed(b, values, wanted, others):
            if (wanted == results).all():
                yield ir.Compare("bool", a, computed, "==")


def _computed(
    size: ir.Expr, values: Array, wanted: Array, others: Sizes
) -> Iterator[tuple[ir.Expr, Array]]:
    """What host code may compute of a size: multiples, counts of blocks and of elements in them.

    Offsets are one more than sequences. Each of `others` may be the number, and one, of sequences
    that begin a block of their own.
    """
    yield ir.Add("int32", size, _constant(1)), values + 1
    factor = int(wanted[0] // values[0]) if values[0] else 0
    if factor >= 1:
        multiple = ir.Mul("int32", _constant(factor), size) if factor > 1 else size
        yield multiple, factor * values
    for block in map(_constant, BLOCKS) if (wanted != values).any() else ():
        rounded: list[tuple[ir.Expr, Any]] = [(_constant(block.value - 1), block.value - 1)]
        for other, numbers in others.items():
            before = ir.Mul("int32", block, ir.Sub("int32", other, _constant(1)))
            rounded.append((before, block.value * (numbers - 1)))
        for more, rows in rounded:
            count = ir.FloorDiv("int32", ir.Add("int32", size, more), block)
            counts = (values + rows) // block.value
            if more is rounded[0][0]:
                yield count, counts
            yield ir.Mul("int32", count, block), counts * block.value


def _given_conditions(
    kernel: ir.Kernel, given: Iterable[str], observed: Sequence[Observation]
) -> Iterator[ir.Expr]:
    """What the spec states of sizes that a kernel has, unless a launch contradicts it."""
    symbols = symbols_of(kernel)
    for stated in map(Expression, given):
        if stated.names <= symbols.keys():
            condition = _condition(stated.tree, stated.text, symbols)
            if all(stated.evaluate(each.symbols) for each in observed):
                yield condition


def _condition(node: Node, text: str, symbols: Mapping[str, ir.Var]) -> ir.Expr:
    """A part of what the spec states, whose whole is `text`."""
    parts = [_condition(part, text, symbols) for part in node.parts]
    match node.kind, node.value:
        case "constant", int(value):
            return _constant(value)
        case "name", name:
            return symbols[name]
        case "arithmetic", sign if sign in _ARITHMETIC:
            return _ARITHMETIC[sign]("int32", *parts)
        case "compare", chain if all(sign in NEGATED for sign, _ in chain):
            links = zip(pairwise(parts), chain, strict=True)
            tests: Iterable[ir.Expr] = (ir.Compare("bool", *ab, sign) for ab, (sign, _) in links)
            return reduce(partial(ir.And, "bool"), tests)
        case "and" | "or" as joined, _:
            return reduce(partial(ir.And if joined == "and" else ir.Or, "bool"), parts)
    error = ExpressionError("not a condition on sizes", text, node.offset)
    raise Unsupported(f"`prove.given`: {error}")


# Tables -------------------------------------------------------------------------------------------


def _loads(table: ir.Buffer, *roots: object) -> list[ir.BufferLoad]:
    nodes = (node for node in walk(*roots) if isinstance(node, ir.BufferLoad))
    return [node for node in nodes if node.buffer.data is table.data]


def _facts_of_tables(
    accesses: Accesses,
    tables: Sequence[ir.Buffer],
    observed: Sequence[Observation],
    alike: Sequence[Observation],
) -> Iterator[Fact]:
    sizes = _sizes(accesses.kernel, alike)
    for table in tables:
        arrays = _arrays(table, alike)
        if any(array.size for array in arrays):
            constants = _ends(_constant_dims(accesses, [table], observed), _arrays(table, observed))
            loaded = [load.indices for load in _loads(table, accesses.kernel.body)]
            columns = sorted({number(at[1]) for at in loaded if len(at) == 2} - {None})
            about = (sizes, _source(alike, table))
            yield from _table_facts(table, arrays, columns, constants, *about)
    # Starts and lengths in tables of their own: that they are all of a dim is no coincidence, but
    # for a table with the starts of padded rows, which launches without padding do not tell apart.
    flat = [table for table in tables if len(table.shape) == 1]
    constant = _constant_dims(accesses, flat, observed)
    for launches, ends in ((alike, sizes), (observed, constant)):
        shown = {Column(table): _arrays(table, launches) for table in flat}
        shown = {column: arrays for column, arrays in shown.items() if arrays}
        whole = [f for f in _interval_facts(shown, ends, _source(launches, *flat)) if f.whole]
        uses = Counter((column, f.end) for f in whole for column in (f.column, f.lengths))
        yield from (f for f in whole if uses[f.column, f.end] == uses[f.lengths, f.end] == 1)


def _table_facts(
    table: ir.Buffer,
    arrays: Sequence[Array],
    numbers: Sequence[int],
    constants: Sequence[ir.Expr],
    sizes: Sizes,
    source: dict[str, Any],
) -> Iterator[Fact]:
    about = {"column": Column(table), **source}
    if arrays[0].ndim == 1:
        offsets = list(_offsets_facts(arrays, sizes, constants, about))
        if offsets:
            yield from offsets
            return
    yield from _bounds(table.name, arrays, sizes, about)
    if arrays[0].ndim == 2 and arrays[0].shape[1] <= 16:
        columns = {Column(table, k): [array[:, k] for array in arrays] for k in numbers}
        yield from _interval_facts(columns, sizes, source)
        for column, cells in columns.items():
            name = f"{table.name}[:, {column.number}]"
            yield from _bounds(name, cells, sizes, {**about, "column": column})
    flat = [array[array >= 0].ravel() for array in arrays]
    if sum(part.size > 1 for part in flat) >= 2 and all(len(set(p)) == p.size for p in flat):
        yield Distinct(words=f"the entries of {table.name} are distinct", **about)


def _arrays(table: ir.Buffer, launches: Sequence[Observation]) -> list[Array]:
    """The table in each launch; none if a launch does not show it."""
    found = [each.tables[table.name] for each in launches if table.name in each.tables]
    return found if len(found) == len(launches) else []


def _source(launches: Sequence[Observation], *tables: ir.Buffer) -> dict[str, Any]:
    """Where a fact about tables comes from."""
    declared = all(table.name in each.declared for table in tables for each in launches)
    return {"source": "spec" if declared else "host", "launches": len(launches)}


def _constant_dims(
    accesses: Accesses, tables: Sequence[ir.Buffer], launches: Sequence[Observation]
) -> Sizes:
    """The dims that are constants and that tables give rows of."""
    found: dict[int, ir.Expr] = {}
    for access in accesses.found:
        for index, extent in zip(access.index, access.buffer.shape, strict=True):
            if (size := number(extent)) is not None and any(_loads(t, index) for t in tables):
                found[size] = extent
    return {extent: np.full(len(launches), size) for size, extent in found.items() if size > 1}


def _ends(sizes: Sizes, arrays: Sequence[Array]) -> list[ir.Expr]:
    """The sizes that are the last element of a table in each launch."""
    if any(array.ndim != 1 or not array.size for array in arrays):
        return []
    lasts = np.array([array[-1] for array in arrays])
    return [size for size, values in sizes.items() if (values == lasts).all()]


def _bounds(
    name: str, arrays: Sequence[Array], sizes: Sizes, about: dict[str, Any]
) -> Iterator[Fact]:
    filled = [k for k, array in enumerate(arrays) if array.size]
    if not filled:
        return
    least = min(int(arrays[k].min()) for k in filled)
    largest = np.array([int(arrays[k].max()) for k in filled])
    if least >= -1:
        yield Within(words=f"{name} >= {min(least, 1)}", least=min(least, 1), **about)
    for size, every in sizes.items():
        values = every[filled]
        slack = int((values - largest).min())
        if slack in (0, 1):
            words = f"{name} {'<' if slack else '<='} {text_of(size)}"
            most = ir.Sub("int32", size, _constant(slack))
            yield Within(words=words, most=most, **about)
        for block in BLOCKS:
            if (values == -(-largest // block)).all() and len(set(values.tolist())) > 1:
                above = ir.Mul("int32", _constant(block), size)
                yield Within(words=f"{name} <= {text_of(above)}", most=above, **about)


def _offsets_facts(
    arrays: Sequence[Array], sizes: Sizes, constants: Sequence[ir.Expr], about: dict[str, Any]
) -> Iterator[Fact]:
    if any(array.size == 0 or array[0] for array in arrays):
        return
    differences = [np.diff(array) for array in arrays]
    every = np.concatenate(differences)
    if not every.size or every.min() < 0:
        return
    name = about["column"].table.name
    ends = _ends(sizes, arrays)
    known: Sequence[ir.Expr | None] = ends or constants or [None]
    for end in known:
        last = "" if end is None else f", {text_of(end)} last"
        words = f"{name} is 0 first, never decreasing{last}"
        yield Offsets(words=words, end=end, **about)
    for size, values in sizes.items():
        slack = [n - d.max() for n, d in zip(values, differences, strict=True) if d.size]
        if size not in ends and min(slack) == 0:
            words = f"no step of {name} is larger than {text_of(size)}"
            yield Steps(words=words, most=size, **about)


def _interval_facts(
    columns: Mapping[Column, Sequence[Array]], sizes: Sizes, about: Mapping[str, Any]
) -> Iterator[Intervals]:
    """Of each two columns and each size, what intervals they are."""
    for (starts, lengths), (end, values) in product(permutations(columns, 2), sizes.items()):
        rows = list(zip(columns[starts], columns[lengths], values.tolist(), strict=True))
        inside = all(
            len(a) == len(b) and ((a >= 0) & (b >= 0) & (a + b <= n)).all() for a, b, n in rows
        )
        if not inside or max(np.count_nonzero(b) for _, b, _ in rows) <= 1:
            continue
        gaps = [_gaps(*each) for each in rows]
        whole, disjoint = not any(map(np.any, gaps)), all((each >= 0).all() for each in gaps)
        apart = "disjoint parts" if whole else "disjoint and inside" if disjoint else "inside"
        yield Intervals(
            words=f"[{starts}, + {lengths}) are {apart} of {text_of(end)}",
            column=starts,
            lengths=lengths,
            end=end,
            disjoint=disjoint,
            whole=whole,
            **about,
        )


def _gaps(starts: Array, lengths: Array, end: int) -> Array:
    """How many elements of a dim are between its intervals, ascending; negative where they meet."""
    order = np.lexsort((lengths, starts))
    order = order[lengths[order] > 0]
    found: Array = np.append(starts[order], end) - np.append(0, (starts + lengths)[order])
    return found
