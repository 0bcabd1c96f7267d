"""Packed axes of a declared problem: what follows from the lengths, and which rows are whose.

A dimension written `sum(seqlens)` holds the rows of all sequences, one after another;
`len(seqlens)` has an element for each sequence; `pages(seqlens, page_size)` are the pages of a
pool that a block table refers to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.model import Dim
from tlmatrix.problem.poison import huge
from tlmatrix.problem.relate import chooser
from tlmatrix.spec.expressions import Expression, ExpressionError
from tlmatrix.spec.lengths import explain_lengths, sides_of

if TYPE_CHECKING:
    from tlmatrix.spec.models import DeclaredProblem, InputDecl
    from tlmatrix.spec.values import Value

    Values = Mapping[str, Value]

__all__ = [
    "Packing",
    "derived_input",
    "owned_slots",
    "packed_axes",
    "packed_dim",
    "packing_of",
    "selected_lengths",
    "stale_pool",
]

_NO_PAGE = (-1, 2**31 - 1)
"""Entries of a block table past the last page of a sequence."""


@dataclass(frozen=True)
class Packing:
    """How one dimension follows from a packed axis.

    `kind` is `rows` (`sum(…)`), `sequences` (`len(…)`) or `pages`; `lengths` are those of the
    sequences, `axis` the packed axis they come from.
    """

    kind: str
    axis: str
    lengths: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many elements along the dimension each sequence has."""
        return self.lengths if self.kind == "rows" else (1,) * len(self.lengths)


def packed_axes(values: Values, declaration: DeclaredProblem) -> tuple[str, ...]:
    """The axes whose lengths decide dimensions of the problem's tensors, in their order."""
    named: set[str] = set()
    for decl in declaration.inputs.values():
        if decl.derived is not None:
            named |= decl.derived[1].names
        for size in decl.sizes:
            found = packing_of(str(size), values)
            if found is not None:
                named.add(found.axis)
    return tuple(axis for axis in values if axis in named and explain_lengths(values[axis]) is None)


def packing_of(size: str, values: Values) -> Packing | None:
    """How a dimension follows from a packed axis; None where it does not."""
    kind, inner = _parts(size)
    if inner is None:
        return None
    axes = [name for name in inner.names if explain_lengths(values.get(name)) is None]
    if len(axes) != 1:
        return None
    lengths = _lengths(inner, values)
    return None if lengths is None else Packing(kind, axes[0], lengths)


@lru_cache(maxsize=1024)
def _parts(size: str) -> tuple[str, Expression | None]:
    for kind, function in (("rows", "sum("), ("sequences", "len("), ("pages", "pages(")):
        if size.startswith(function) and size.endswith(")"):
            inner = size[len(function) : -1]
            if kind == "pages":
                inner = inner.rpartition(",")[0]
            try:
                return kind, Expression(inner)
            except ExpressionError:
                return "", None  # `sum(a) + sum(b)`
    return "", None


def _lengths(of: Expression, values: Values) -> tuple[int, ...] | None:
    """The list an expression gives; that of a packed axis itself may be written with sides."""
    found = of.evaluate(values)
    if isinstance(found, Mapping):
        q, k = sides_of(found)
        return q if q == k else None
    if isinstance(found, Sequence) and all(type(each) is int and each >= 0 for each in found):
        return tuple(found)
    return None


def packed_dim(name: str, size: int, packing: Packing | None, tile: int | None) -> Dim:
    """A dimension as findings describe it: "sequence 2, position 17" of packed rows."""
    if packing is None or packing.kind == "pages":
        return Dim("page" if packing else name, size, tile=tile)
    if packing.kind == "sequences":
        return Dim("sequence", size, region=range(size), tile=tile)
    return Dim(
        "position",
        size,
        region=_sequence_ids(packing.lengths),
        starts=list(accumulate(packing.lengths, initial=0)),
        region_name="sequence",
        tile=tile,
    )


def _sequence_ids(lengths: Sequence[int]) -> list[int]:
    return [number for number, length in enumerate(lengths) for _ in range(length)]


# Inputs that follow from lengths ------------------------------------------------------------------


def derived_input(decl: InputDecl, values: Values, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A CPU tensor of what `decl` says follows from a packed axis; `seed` shuffles pages.

    Raises:
        ValueError: the expression gives no list of lengths.
    """
    assert decl.derived is not None
    key, of = decl.derived
    lengths = _lengths(of, values)
    if lengths is None:
        raise ValueError(f"{key}: {str(of)!r} is {of.evaluate(values)!r}, not a list of lengths")
    starts = list(accumulate(lengths, initial=0))
    match key:
        case "offsets_of":
            numbers = starts
        case "starts_of":
            numbers = starts[:-1]
        case "lengths_of":
            numbers = list(lengths)
        case "sequence_ids_of":
            numbers = _sequence_ids(lengths)
        case "positions_of":
            numbers = [position for length in lengths for position in range(length)]
        case _:
            return _block_table(lengths, _page_size(decl, values), seed).to(dtype)
    return torch.tensor(numbers, dtype=dtype)


def _page_size(decl: InputDecl, values: Values) -> int:
    size = decl.page_size
    found = size.evaluate(values) if isinstance(size, Expression) else size
    if type(found) is not int or found < 1:
        raise ValueError(f"page_size: {str(size)!r} is {found!r}, not a number of rows from 1 on")
    return found


def _block_table(lengths: Sequence[int], page_size: int, seed: int) -> torch.Tensor:
    owned = pages_of(lengths, page_size, seed)
    pick = chooser(seed + 1)
    most = max(map(len, owned), default=0)
    rows = [[*own, *(pick.choice(_NO_PAGE) for _ in range(most - len(own)))] for own in owned]
    return torch.tensor(rows, dtype=torch.int64).view(len(lengths), most)


def pages_of(lengths: Sequence[int], page_size: int, seed: int) -> list[list[int]]:
    """The pages of each sequence, in the order of its rows; shuffled over the pool."""
    counts = [-(-length // page_size) for length in lengths]
    pool = list(range(Expression("pages(n, size)").evaluate({"n": lengths, "size": page_size})))
    chooser(seed).shuffle(pool)
    return [[pool.pop() for _ in range(count)] for count in counts]


def owned_slots(
    lengths: Sequence[int], page_size: int, seed: int, sequences: Sequence[int]
) -> torch.Tensor:
    """Slots of a pool, counted over its pages, that hold rows of some sequences; int64."""
    owned = pages_of(lengths, page_size, seed)
    slots = [
        owned[number][position // page_size] * page_size + position % page_size
        for number in sequences
        for position in range(lengths[number])
    ]
    return torch.tensor(slots, dtype=torch.int64)


def stale_pool(pool: torch.Tensor, lengths: Sequence[int], seed: int) -> torch.Tensor:
    """A pool whose slots that hold no row are huge or, with odd seeds, NaN.

    pool: [pages, page_size, ...]; its values stay where sequences own them. Integers stay.
    """
    if not pool.is_floating_point() or pool.ndim < 2:
        return pool
    slots = owned_slots(lengths, pool.shape[1], seed, range(len(lengths)))
    factor = torch.nan if seed % 2 else huge(str(pool.dtype).removeprefix("torch."))
    stale = (pool.float() * factor).to(pool.dtype)
    stale.flatten(0, 1)[slots] = pool.flatten(0, 1)[slots]
    return stale


def selected_lengths(value: Value, order: Sequence[int]) -> Value:
    """The value of a packed axis for the sequences `order`, in that order and in its own form."""
    q, k = sides_of(value)
    queries, keys = [q[number] for number in order], [k[number] for number in order]
    if not isinstance(value, Mapping):
        return queries
    if isinstance(value["q"], int):
        return {"q": value["q"], "k": keys}
    return (
        {"q": queries, "k": "same"}
        if value.get("k", "same") == "same"
        else {"q": queries, "k": keys}
    )
