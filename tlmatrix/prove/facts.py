"""Facts about the arguments of a kernel: what the host code passes, in every launch.

A fact is a pattern (offsets of sequences, disjoint ranges, indices below a dim, …) that all
observed launches of a kernel follow. Where the tensor is one of the problem's, the spec declares
it; else host code computed it, and the report says in how many launches it was observed. A fact
that one launch contradicts is no fact.

No quantifier is given to Z3: a fact is instantiated at the elements that a query's terms load.
"""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import z3

from tlmatrix.interpreter.analysis.expressions import evaluate, number
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import text_of, walk
from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .terms import Load, Terms

    Array = np.ndarray[Any, Any]

_ARITHMETIC: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a / b,  # of integers: rounded down for positive b
    ast.Mod: operator.mod,
}
_ORDER: dict[type, Any] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_BLOCKS = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512)
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


@dataclass(frozen=True, eq=False)
class Size:
    """A dim or a scalar of a launch, or a constant dim."""

    words: str
    expr: ir.Expr

    def value(self, observed: Observation) -> int:
        """What it is in a launch."""
        return int(evaluate(self.expr, observed.symbols))


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


class AboutSizes(Fact):
    """A fact about sizes alone."""

    def condition(self, terms: Terms) -> z3.BoolRef:
        """The term of it."""
        raise NotImplementedError

    def instances(self, terms: Terms, _loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """The condition."""
        yield self.condition(terms)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeFact(AboutSizes):
    """A least value of a scalar or dim."""

    size: Size
    least: int

    def condition(self, terms: Terms) -> z3.BoolRef:
        """The term of it."""
        return terms.integer(self.size.expr) >= self.least


@dataclass(frozen=True, kw_only=True, eq=False)
class Equal(AboutSizes):
    """A size that is a multiple of another one, or one more, as there are offsets."""

    size: Size
    of: Size
    factor: int = 1
    more: int = 0

    def condition(self, terms: Terms) -> z3.BoolRef:
        """The term of it."""
        other = self.factor * terms.integer(self.of.expr)
        return terms.integer(self.size.expr) == other + self.more


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(AboutSizes):
    """A condition on sizes that the spec states (`prove.given`)."""

    tree: ast.expr
    symbols: Mapping[str, ir.Var]

    def condition(self, terms: Terms) -> z3.BoolRef:
        """The term of it."""
        return self._term(self.tree, terms)

    def _term(self, node: ast.expr, terms: Terms) -> Any:  # noqa: ANN401 - a number or condition
        match node:
            case ast.Constant(int(value)):
                return z3.IntVal(value)
            case ast.Name(name):
                return terms.variable(self.symbols[name])
            case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
                a, b = self._term(left, terms), self._term(right, terms)
                return _ARITHMETIC[type(operator)](a, b)
            case ast.Compare(left, operators, comparators):
                parts = [left, *comparators]
                sides = [self._term(each, terms) for each in parts]
                pairs = zip(operators, sides, sides[1:], strict=False)
                return z3.And([_ORDER[type(each)](a, b) for each, a, b in pairs])
            case ast.BoolOp(operator, values):
                both = z3.And if isinstance(operator, ast.And) else z3.Or
                return both([self._term(each, terms) for each in values])
        raise Unsupported(f"`prove.given`: {ast.unparse(node)} is not a condition on sizes")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounded(AboutSizes):
    """A size that is a count of blocks, or a multiple of a block's size: `ceil(n / block) * unit`.

    With `starts`, each of so many sequences (less one) begins a block of its own:
    `(n + block * (starts - 1)) // block * unit`.
    """

    size: Size
    of: Size
    block: int
    unit: int
    starts: Size | None = None

    def condition(self, terms: Terms) -> z3.BoolRef:
        """The term of it."""
        whole = terms.polynomial(self.of.expr)
        if self.starts is None:
            more = self.block - 1
        else:
            starts = terms.polynomial(self.starts.expr)
            whole = whole.plus(starts, self.block)
            more = -self.block
        whole = whole.plus(terms.parsed(z3.IntVal(more)))
        count = terms.divided(whole, terms.parsed(z3.IntVal(self.block)))
        return terms.integer(self.size.expr) == self.unit * terms.term(count)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFact(Fact):
    """A fact about an integer tensor."""

    table: ir.Buffer

    def own(self, loads: Sequence[Load]) -> list[Load]:
        """The elements of the tensor among those loaded."""
        return [load for load in loads if load.buffer.data is self.table.data]

    def inside(self, terms: Terms, load: Load) -> z3.BoolRef:
        """Whether an element exists."""
        shape = [terms.integer(extent) for extent in self.table.shape]
        pairs = zip(load.indices, shape, strict=True)
        return z3.And([z3.And(i >= 0, i < n) for i, n in pairs])


@dataclass(frozen=True, kw_only=True, eq=False)
class Within(TableFact):
    """Elements between bounds, those of one column if `column` is not None."""

    least: int | None = None
    most: Size | None = None
    factor: int = 1
    strict: bool = False
    column: int | None = None

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each element."""
        for load in self.own(loads):
            here = self.inside(terms, load)
            if self.column is not None:
                here = z3.And(here, load.indices[-1] == self.column)
            if self.least is not None:
                yield z3.Implies(here, load.value >= self.least)
            if self.most is not None:
                most = self.factor * terms.integer(self.most.expr)
                test = load.value < most if self.strict else load.value <= most
                yield z3.Implies(here, test)


@dataclass(frozen=True, kw_only=True, eq=False)
class Offsets(TableFact):
    """Offsets of packed sequences: 0 first, never decreasing, the end last.

    Attributes:
        longest: the largest step that a launch had.
        unit: the largest number that divides all steps of all launches.
    """

    end: Size | None
    longest: int
    unit: int

    def usual(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """That no step is larger than those of launches, nor another multiple: which is no fact."""
        most = Size("", ir.IntImm("int32", self.longest))
        steps = Steps(words="", source="host", launches=0, table=self.table, most=most)
        yield from steps.instances(terms, loads)
        if self.unit > 1:
            yield from (load.value % self.unit == 0 for load in self.own(loads))

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two elements."""
        own = self.own(loads)
        last = terms.integer(self.table.shape[0]) - 1
        ends = [(z3.IntVal(0), z3.IntVal(0))]
        if self.end is not None:
            ends.append((last, terms.integer(self.end.expr)))
        for load in own:
            here = self.inside(terms, load)
            for place, value in ends:
                yield z3.Implies(load.indices[0] == place, load.value == value)
            yield z3.Implies(here, load.value >= 0)
            if self.end is not None:
                yield z3.Implies(here, load.value <= ends[-1][1])
        for a, b in combinations(own, 2):
            both = z3.And(self.inside(terms, a), self.inside(terms, b))
            yield z3.Implies(z3.And(both, a.indices[0] <= b.indices[0]), a.value <= b.value)
            yield z3.Implies(z3.And(both, b.indices[0] <= a.indices[0]), b.value <= a.value)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps(TableFact):
    """Neighbours that differ by at most a size: no sequence is longer."""

    most: Size

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two neighbours."""
        own = self.own(loads)
        most = terms.integer(self.most.expr)
        for a in own:
            for b in own:
                if a is b:
                    continue
                both = z3.And(self.inside(terms, a), self.inside(terms, b))
                yield z3.Implies(
                    z3.And(both, b.indices[0] == a.indices[0] + 1), b.value - a.value <= most
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class Intervals(TableFact):
    """Rows of a table that are intervals, a start and a length, inside a dim.

    Attributes:
        disjoint: whether no two have an element in common.
        whole: whether they are all of the dim.
    """

    start: int
    length: int
    end: Size
    disjoint: bool
    whole: bool

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two rows."""
        rows: dict[int, z3.ArithRef] = {}
        for load in self.own(loads):
            rows.setdefault(load.indices[0].get_id(), load.indices[0])
        count = terms.integer(self.table.shape[0])
        end = terms.integer(self.end.expr)

        def part(row: z3.ArithRef) -> tuple[z3.BoolRef, z3.ArithRef, z3.ArithRef]:
            start, length = (
                terms.load(self.table, (row, z3.IntVal(c))) for c in (self.start, self.length)
            )
            return z3.And(row >= 0, row < count), start, length

        parts = [(row, *part(row)) for row in rows.values()]
        for _, here, start, length in parts:
            yield z3.Implies(here, z3.And(start >= 0, length >= 0, start + length <= end))
        for (i, one, a, n), (j, other, b, m) in combinations(parts, 2) if self.disjoint else ():
            apart = z3.Or(a + n <= b, b + m <= a, n == 0, m == 0)
            yield z3.Implies(z3.And(one, other, i != j), apart)


@dataclass(frozen=True, kw_only=True, eq=False)
class Distinct(TableFact):
    """Elements of which no two are equal, but for negative ones."""

    def instances(self, terms: Terms, loads: Sequence[Load]) -> Iterator[z3.BoolRef]:
        """One for each two elements."""
        for a, b in combinations(self.own(loads), 2):
            both = z3.And(self.inside(terms, a), self.inside(terms, b))
            same = z3.And([x == y for x, y in zip(a.indices, b.indices, strict=True)])
            yield z3.Implies(z3.And(both, a.value == b.value, a.value >= 0), same)


def follows(steps: Array, others: Array) -> bool:
    """Whether steps may be counts of tiles of others, rounded up, or are the same."""
    return steps.shape == others.shape and any(
        (steps == -(-others // block) * unit).all()
        for block in (1, *_BLOCKS)
        for unit in (1, block)
    )


def symbols_of(kernel: ir.Kernel) -> dict[str, ir.Var]:
    """The symbolic dims and integer scalars of a kernel, by name."""
    found: dict[str, ir.Var] = {}
    for buffer in kernel.buffer_map.values():
        for node in walk(*buffer.shape):
            if isinstance(node, ir.Var):
                found[node.name] = node
    for var in kernel.params:
        if var not in kernel.buffer_map and var.dtype.startswith(("int", "uint")):
            found[var.name] = var
    return found


def rows_of(terms: Terms, fact: Fact, sequence: z3.ArithRef) -> tuple[z3.ArithRef, z3.ArithRef]:
    """The first row of a sequence, and that after its last."""
    if isinstance(fact, Offsets):
        return terms.load(fact.table, (sequence,)), terms.load(fact.table, (sequence + 1,))
    assert isinstance(fact, Intervals)
    start = terms.load(fact.table, (sequence, z3.IntVal(fact.start)))
    return start, start + terms.load(fact.table, (sequence, z3.IntVal(fact.length)))


def facts_of(
    kernel: ir.Kernel,
    tables: Sequence[ir.Buffer],
    observed: Sequence[Observation],
    alike: Sequence[Observation],
    columns: Mapping[str, frozenset[int]],
    ends: Mapping[str, Iterable[ir.Expr]],
    given: Mapping[str, str],
) -> list[Fact]:
    """The facts that all observed launches of a kernel agree on.

    Args:
        kernel: the kernel.
        tables: its parameters that are integer tensors it only reads.
        observed: its launches.
        alike: those of all kernels of its name, which are compiled for other options; what they
            say of tables holds for it, too.
        columns: by table, the columns that the kernel loads.
        ends: by table, the dims whose indices are counted from its elements.
        given: conditions on sizes that the spec states, with the reasons; one is a fact where the
            kernel has all its names, and every launch agrees.
    """
    if not observed:
        return []
    found = [*_given_facts(kernel, given, observed)]
    # What holds for all kernels of the name holds for this one, too.
    for launches in (observed, alike):
        own = _sizes(kernel, launches)
        known = {fact.words for fact in found}
        more = (*_size_facts(own, launches), *_rounded_facts(own, launches))
        found += [fact for fact in more if fact.words not in known]
    sizes = _sizes(kernel, alike)
    for table in tables:
        arrays = [each.tables[table.name] for each in alike if table.name in each.tables]
        if len(arrays) == len(alike) and any(a.size for a in arrays):
            used = columns.get(table.name, frozenset())
            constants = _constant_ends(ends.get(table.name, ()), table, observed)
            found += _table_facts(table, arrays, sizes, alike, used, constants)
    return found


def _constant_ends(
    extents: Iterable[ir.Expr], table: ir.Buffer, observed: Sequence[Observation]
) -> list[Size]:
    """Those of the dims that a table gives rows of which are constants, and its last element."""
    arrays = [each.tables[table.name] for each in observed]
    lasts = {int(array[-1]) for array in arrays if array.ndim == 1 and array.size}
    found = {number(e): Size(text_of(e), e) for e in extents if number(e) is not None}
    return [found[last] for last in lasts if len(lasts) == 1 and last > 1 and last in found]


def _sizes(kernel: ir.Kernel, observed: Sequence[Observation]) -> list[Size]:
    found: dict[str, Size] = {}
    for buffer in kernel.buffer_map.values():
        for extent in buffer.shape:
            found.setdefault(text_of(extent), Size(text_of(extent), extent))
    for var in kernel.params:
        if var not in kernel.buffer_map and var.dtype.startswith(("int", "uint")):
            found.setdefault(var.name, Size(var.name, var))
    known = []
    for size in found.values():
        if isinstance(size.expr, ir.IntImm):
            continue  # a table's entries need not fit a constant
        try:
            for each in observed:
                size.value(each)
        except (Unsupported, KeyError):
            continue
        known.append(size)
    return known


def _size_facts(sizes: Sequence[Size], observed: Sequence[Observation]) -> Iterator[Fact]:
    values = {size: [size.value(each) for each in observed] for size in sizes}
    for size in sizes:
        least = min(values[size])
        bound = 1 if least >= 1 else 0 if least == 0 else None
        if bound is not None:
            yield SizeFact(
                words=f"{size.words} >= {bound}",
                source="host",
                launches=len(observed),
                size=size,
                least=bound,
            )
    varied = [size for size in sizes if len(set(values[size])) > 1]
    for a in varied:
        for b in varied:
            x, y = values[a], values[b]
            if all(u == v + 1 for u, v in zip(x, y, strict=True)):
                words = f"{a.words} == {b.words} + 1"
                yield Equal(
                    words=words, source="host", launches=len(observed), size=a, of=b, more=1
                )
            if a is b or not y[0] or x[0] % y[0]:
                continue
            factor = x[0] // y[0]
            if factor >= 1 and all(u == factor * v for u, v in zip(x, y, strict=True)):
                times = f"{factor} * " if factor > 1 else ""
                yield Equal(
                    words=f"{a.words} == {times}{b.words}",
                    source="host",
                    launches=len(observed),
                    size=a,
                    of=b,
                    factor=factor,
                )


def _given_facts(
    kernel: ir.Kernel, given: Mapping[str, str], observed: Sequence[Observation]
) -> Iterator[Fact]:
    symbols = symbols_of(kernel)
    for text in given:
        given_condition = Expression(text)
        if not given_condition.names <= symbols.keys():
            continue
        try:
            holds = all(given_condition.evaluate(each.symbols) for each in observed)
        except ExpressionError:
            continue
        if holds:
            yield Given(
                words=text,
                source="spec",
                launches=len(observed),
                tree=ast.parse(text, mode="eval").body,
                symbols=symbols,
            )


def _rounded_facts(sizes: Sequence[Size], observed: Sequence[Observation]) -> Iterator[Fact]:
    values = {size: np.array([size.value(each) for each in observed]) for size in sizes}
    varied = [size for size in sizes if len(set(values[size].tolist())) > 1]
    for a in varied:
        for b in varied:
            if a is b or (values[a] == values[b]).all():
                continue
            for block in _BLOCKS:
                count = (values[b] + block - 1) // block
                for unit in (1, block):
                    if len(set(count.tolist())) > 1 and (values[a] == count * unit).all():
                        times = f" * {unit}" if unit > 1 else ""
                        yield Rounded(
                            words=f"{a.words} == ceil({b.words} / {block}){times}",
                            source="host",
                            launches=len(observed),
                            size=a,
                            of=b,
                            block=block,
                            unit=unit,
                        )
                for c in varied:
                    if c is a or c is b:
                        continue
                    padded = (values[b] + block * (values[c] - 1)) // block * block
                    if (values[a] == padded).all():
                        yield Rounded(
                            words=f"{a.words} == ({b.words} + {block} * ({c.words} - 1)) "
                            f"// {block} * {block}",
                            source="host",
                            launches=len(observed),
                            size=a,
                            of=b,
                            block=block,
                            unit=block,
                            starts=c,
                        )


def _table_facts(
    table: ir.Buffer,
    arrays: Sequence[Array],
    sizes: Sequence[Size],
    observed: Sequence[Observation],
    columns: frozenset[int],
    constants: Sequence[Size],
) -> Iterator[Fact]:
    name = table.name
    source = "spec" if all(name in each.declared for each in observed) else "host"
    about: dict[str, Any] = {"source": source, "launches": len(observed), "table": table}
    pairs = list(zip(arrays, observed, strict=True))
    offsets = (
        list(_vector_facts(name, pairs, sizes, constants, about)) if arrays[0].ndim == 1 else []
    )
    if offsets:
        yield from offsets
        return
    yield from _bounds(name, pairs, sizes, about, None)
    if arrays[0].ndim == 2 and arrays[0].shape[1] <= 16:
        known = sorted(columns)
        yield from _interval_facts(name, pairs, sizes, about, known)
        for column in known:
            cells = [(array[:, column], each) for array, each in pairs]
            yield from _bounds(f"{name}[:, {column}]", cells, sizes, about, column)
    flat = [array[array >= 0].ravel() for array in arrays]
    if sum(part.size > 1 for part in flat) >= 2 and all(len(set(p)) == p.size for p in flat):
        yield Distinct(words=f"the entries of {name} are distinct", **about)


def _bounds(
    name: str,
    pairs: Sequence[tuple[Array, Observation]],
    sizes: Sequence[Size],
    about: dict[str, Any],
    column: int | None,
) -> Iterator[Fact]:
    pairs = [(array, each) for array, each in pairs if array.size]
    if not pairs:
        return
    least = min(int(array.min()) for array, _ in pairs)
    if least >= -1:
        bound = min(least, 1)
        yield Within(words=f"{name} >= {bound}", least=bound, column=column, **about)
    for size in sizes:
        slack = [size.value(each) - int(array.max()) for array, each in pairs]
        if min(slack) in (0, 1):
            strict = min(slack) == 1
            words = f"{name} {'<' if strict else '<='} {size.words}"
            yield Within(words=words, most=size, strict=strict, column=column, **about)
        for block in _BLOCKS:
            blocks = [-(-int(array.max()) // block) for array, _ in pairs]
            counts = [size.value(each) for _, each in pairs]
            if blocks == counts and len(set(counts)) > 1:
                words = f"{name} <= {block} * {size.words}"
                yield Within(words=words, most=size, factor=block, column=column, **about)


def _vector_facts(
    name: str,
    pairs: Sequence[tuple[Array, Observation]],
    sizes: Sequence[Size],
    constants: Sequence[Size],
    about: dict[str, Any],
) -> Iterator[Fact]:
    if any(array.size == 0 for array, _ in pairs):
        return
    differences = [np.diff(array.astype(np.int64)) for array, _ in pairs]
    if not any(d.size for d in differences):
        return
    if not all((d >= 0).all() for d in differences) or any(array[0] for array, _ in pairs):
        return
    ends = [s for s in sizes if all(array[-1] == s.value(each) for array, each in pairs)]
    known: list[Size | None] = [*ends] or [*constants] or [None]
    for end in known:
        last = "" if end is None else f", {end.words} last"
        words = f"{name} is 0 first, never decreasing{last}"
        longest = max(int(d.max()) for d in differences if d.size)
        unit = math.gcd(*(int(n) for d in differences for n in d))
        yield Offsets(words=words, end=end, longest=longest, unit=unit, **about)
    steps = [(d, each) for d, (_, each) in zip(differences, pairs, strict=True) if d.size]
    for size in sizes:
        if size in ends:
            continue
        slack = [size.value(each) - int(d.max()) for d, each in steps]
        if min(slack) == 0:
            words = f"no step of {name} is larger than {size.words}"
            yield Steps(words=words, most=size, **about)


def _interval_facts(
    name: str,
    pairs: Sequence[tuple[Array, Observation]],
    sizes: Sequence[Size],
    about: dict[str, Any],
    columns: Sequence[int],
) -> Iterator[Fact]:
    for start in columns:
        for length in columns:
            if start == length:
                continue
            for end in sizes:
                kinds = [
                    _intervals(array[:, start], array[:, length], end.value(each))
                    for array, each in pairs
                ]
                if None in kinds or not any(len(array) > 1 for array, _ in pairs):
                    continue
                whole, disjoint = all(k == "whole" for k in kinds), "inside" not in kinds
                apart = "disjoint parts" if whole else "disjoint and inside"
                what = apart if disjoint else "inside"
                yield Intervals(
                    words=f"[{name}[i, {start}], + {name}[i, {length}]) are {what} of {end.words}",
                    start=start,
                    length=length,
                    end=end,
                    disjoint=disjoint,
                    whole=whole,
                    **about,
                )


def _intervals(
    starts: Array, lengths: Array, end: int
) -> Literal["whole", "disjoint", "inside"] | None:
    """What intervals are to a dim; None if one leaves it."""
    parts = sorted((int(s), int(n)) for s, n in zip(starts, lengths, strict=True))
    if any(n < 0 or s < 0 or s + n > end for s, n in parts):
        return None
    reached = 0
    whole = True
    for start, length in (part for part in parts if part[1]):
        if start < reached:
            return "inside"
        whole &= start == reached
        reached = start + length
    return "whole" if whole and reached == end else "disjoint"
