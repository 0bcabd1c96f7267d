"""Relations among the sizes of recorded calls: which are equal, and which follow from others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Place = tuple[str, int]
"""A dimension of a tensor."""
Column = tuple[int, ...]
"""A size in each call."""
Size = int | str
"""A dimension in a spec: a number, or an expression of arguments and symbolic dimensions."""

COUNT = re.compile(
    r"batch|heads?$|groups?$|experts?$|top_?k|width|window|taps|kernel_size|iter|state|^[bhew]$",
    re.IGNORECASE,
)
"""Names of dimensions that are small: counts, and widths of filters."""
BATCH = re.compile(r"batch|^b$", re.IGNORECASE)
"""Names of counts that code takes any of."""
NAME = re.compile(r"\w+( \+ \d+)?")
"""A symbolic dimension, perhaps with one more for ends."""
WORD = re.compile(r"[A-Za-z_]\w*")
"""A name in an expression."""
_SPARE = ("rows", "cols", *(f"size{k}" for k in range(3, 40)))
_FACTORS = (2, 3, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Relations:
    """The dimensions as expressions.

    Attributes:
        dims: the expression of each dimension.
        symbols: the size of each symbol in each call.
        guesses: expressions that may hold by chance, as there was one call or all had the same
            sizes, with a name for a symbol in place of each, and the size in each call.
    """

    dims: dict[Place, Size]
    symbols: dict[str, Column]
    guesses: dict[str, tuple[str, Column]]


def relate(
    columns: Mapping[Place, Column],
    names: Mapping[Place, str],
    *,
    scalars: Mapping[str, Column],
    vectors: frozenset[str] = frozenset(),
    offsets: frozenset[str] = frozenset(),
    results: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
    tiles: Sequence[int] | None = None,
) -> Relations:
    """Name the dimensions of calls.

    Args:
        columns: the sizes of each dimension, those of results last.
        names: dimensions in the code, such as `rows`, `batch + 1`, `cols // 2` of scalars, or `64`.
        scalars: whole numbers that the calls pass by name.
        vectors: integer vectors, whose length is that of no product or part.
        offsets: integer vectors that may be offsets, whose length is that of no other tensor.
        results: tensors whose sizes follow from others, or are numbers.
        taken: names that symbols cannot have.
        tiles: if the calls are traces: sizes of tiles, by which quotients may be rounded.
    """
    dims: dict[Place, Size] = {}
    symbols: dict[str, Column] = {}
    parts = {w for text in names.values() if not NAME.fullmatch(text) for w in WORD.findall(text)}
    passed = {
        column: name
        for name, column in reversed([*scalars.items()])
        if (min(column) > 2 or len({*column}) > 1) and name not in parts
    }  # not of a trace, which tells sizes apart

    def follows(place: Place) -> bool:
        return place[0] in results or not NAME.fullmatch(names[place])

    for place in sorted(names, key=follows):
        text = names[place]
        if follows(place):
            if place in columns and evaluated(text, {**scalars, **symbols}) == columns[place]:
                dims[place] = text
                symbols |= {name: scalars[name] for name in Expression(text).names & {*scalars}}
            continue
        if text.isdigit():
            dims |= {place: int(text)} if {*columns.get(place, ())} == {int(text)} else {}
            continue
        name, _, more = text.partition(" + ")
        column = tuple(size - int(more or 0) for size in columns.get(place, ()))
        name = name if name in {*scalars, *parts} else passed.get(column, name)
        name = f"{name}_size" if name in taken else name
        if column and symbols.setdefault(name, column) == column:
            dims[place] = f"{name} + {more}" if more else name
    for name, column in scalars.items():
        if any(column == each for each in columns.values()) and max(column) > 1:
            symbols.setdefault(name, column)
    whole = {str(size).partition(" ")[0] for (name, _), size in dims.items() if name in vectors}
    counts = {columns[name, 0] for name in vectors - offsets}
    spare = iter(name for name in _SPARE if name not in taken)
    guesses: dict[str, tuple[str, Column]] = {}
    for place, column in columns.items():
        if place in dims:
            continue
        single = place[0] in vectors or place[0] in offsets
        known = {name: sizes for name, sizes in symbols.items() if name not in whole or single}
        if tiles is None and len({*column}) == 1 and place[0] not in results:
            # A square matrix in all calls, of one size, need not be one.
            beside = {size for (name, _), size in dims.items() if name == place[0]}
            known = {name: sizes for name, sizes in known.items() if name not in beside}
            # Of equal sizes, that of the same dimension of another tensor.
            same = {size for (_, dim), size in dims.items() if dim == place[1]}
            known = {name: known[name] for name in sorted(known, key=lambda n: n not in same)}
        known = known if tiles is None else {**scalars, **known}
        size: Size | None = 1 if {*column} == {1} else None
        if size is None and place[0] not in offsets:
            equal = next((name for name, sizes in known.items() if sizes == column), None)
            simple = equal is not None or single or (tiles is None and min(column) < 2)
            simple = simple or column in counts  # a number of vectors' elements, not of others
            alike = [each for other, each in dims.items() if columns[other] == column]
            made = (e for e in alike if isinstance(e, str) and not e.isidentifier())
            found = candidates(column, known, tiles=tiles)
            size = equal if simple else next(made, None) or next(found, None)
        if size is None and (place[0] in results or tiles is not None):
            size = column[0]
        elif size is None:
            name = "bounds" if place[0] in offsets else next(n for n in spare if n not in symbols)
            if symbols.setdefault(name, column) != column:
                name = next(n for n in spare if n not in symbols)
                symbols[name] = column
            size = name
        elif isinstance(size, str):
            symbols |= {name: known[name] for name in Expression(size).names if name in known}
            if not size.isidentifier() and len({*column}) == 1 and place[0] not in results:
                guesses[size] = (f"{place[0]}_{place[1]}".lower(), column)
        dims[place] = size
    for name in [each for each in symbols if each not in scalars and each in dims.values()]:
        others = {w for size in dims.values() if size != name for w in WORD.findall(str(size))}
        text = "" if tiles is not None or name in others else _product(name, symbols)
        if text:
            dims = {place: text if size == name else size for place, size in dims.items()}
            del symbols[name]
    return Relations(dims, symbols, guesses)


def _product(name: str, symbols: Mapping[str, Column]) -> str:
    """The two symbols whose product another one is in calls of several sizes; "" without them."""
    calls = _calls(symbols)
    pairs = combinations((other for other in symbols if other != name), 2)
    texts = (f"{a} * {b}" for a, b in pairs if len({*symbols[name]}) > 1)
    found = (e for e in texts if _in_calls(e, calls) == symbols[name] and _telling(e, calls))
    return next(found, "")


def evaluated(text: str, known: Mapping[str, Column]) -> Column | None:
    """An expression in each call; None if it has unknown names or cannot be evaluated."""
    return _in_calls(text, _calls(known))


def _calls(known: Mapping[str, Column]) -> list[dict[str, int]]:
    """The sizes of each call by name."""
    return [dict(zip(known, sizes, strict=True)) for sizes in zip(*known.values(), strict=True)]


def _in_calls(text: str, calls: Sequence[Mapping[str, int]]) -> Column | None:
    try:
        return tuple(Expression(text).evaluate(sizes) for sizes in calls)
    except ExpressionError:
        return None


def candidates(
    column: Column, known: Mapping[str, Column], *, tiles: Sequence[int] | None = None
) -> Iterator[str]:
    """Expressions with the value of a size in every call, the most usual first.

    With `tiles`, the sizes are those of traces, and differ where expressions do.
    """
    calls = _calls(known)
    moving = len({*column}) > 1
    yield from (name for name, sizes in known.items() if sizes == column)
    for text in _usual([*known], dict.fromkeys([*(tiles or ()), *_FACTORS]), moving=moving):
        if _in_calls(text, calls) == column and (tiles is not None or _telling(text, calls)):
            yield text


def _usual(names: Sequence[str], factors: Iterable[int], *, moving: bool) -> Iterator[str]:
    yield from (f"{a} // {b}" for a, b in permutations(filter(COUNT.search, names), 2))
    for name in names:
        yield f"{name} + 1"
        yield f"{name} // 2"
    for k, name in enumerate(names):
        yield from (f"{name} * {other}" for other in names[k:])
    yield from (f"{factor} * {name}" for name, factor in product(names, factors))
    yield from (f"{name} // {factor}" for name, factor in product(names, factors))
    yield from (f"ceildiv({name}, {factor})" for name, factor in product(names, factors))
    for name, other in permutations(names, 2) if moving else ():  # seldom: both are no counts
        yield f"{name} // {other}"
        yield f"ceildiv({name}, {other})"
        if name < other:
            yield f"{name} + {other}"
            yield f"{name} + {other} - 1"


def _telling(text: str, rows: Sequence[Mapping[str, int]]) -> bool:
    """Whether a quotient is exact, and no part so small that any size would be a multiple."""
    least = 3 if text.endswith(("// 2", "+ 1")) else 2
    if " // " in text:
        total, _, by = text.partition(" // ")
        if any(row[total] % (int(by) if by.isdigit() else row[by]) for row in rows):
            return False
    names = [name for name in rows[0] if name in re.findall(r"\w+", text)]
    return all(row[name] >= least for row in rows for name in names)


def holds(condition: str, values: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds; None if it divides by zero."""
    try:
        return bool(Expression(condition).evaluate(values))
    except ExpressionError:
        return None
