"""The inputs of a declared problem, generated from a seed or derived from sequence lengths.

A dimension `sum(seqlens)` of a packed axis holds the rows of all sequences, one after another;
`len(seqlens)` has an element per sequence; `pages(seqlens, page_size)` are the pages of a pool, for
a block table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.dtypes import torch_dtype
from tlmatrix.problem.distributions import OF_PARTS, draw, generator, poison_scale, uniform
from tlmatrix.problem.model import Dim
from tlmatrix.problem.paging import Paging
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.importing import refuse
from tlmatrix.spec.model.packed import call_of, is_packed, names_in, packed_lists
from tlmatrix.spec.model.spec import OutputDecl
from tlmatrix.spec.values import explain_lengths, sides_of

if TYPE_CHECKING:
    from tlmatrix.spec.issues import KeyPath
    from tlmatrix.spec.model.spec import DeclaredProblem, InputDecl
    from tlmatrix.spec.values import Value

    Values = Mapping[str, Value]

    from tlmatrix.problem.family import CaseSetup

_RANK_OF_ENDS = 0.5
"""What the least and the largest number are ordered by, relative to others: most rows have them."""


@dataclass(frozen=True)
class Packing:
    """A dimension that follows from a packed axis.

    `kind` is `sum` (rows of sequences), `len` (sequences) or `pages`; `lengths` are the lengths of
    the sequences, `axis` is the packed axis.
    """

    kind: str
    axis: str
    lengths: tuple[int, ...]
    arguments: tuple[Expression, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each sequence along the dimension."""
        return (1,) * len(self.lengths) if self.kind == "len" else self.lengths


def packed_axes(values: Values, declaration: DeclaredProblem) -> tuple[str, ...]:
    """The packed axes of a case, whose values are sequence lengths, in order."""
    named = {name for _, lengths in packed_lists(declaration) for name in lengths.names}
    return tuple(axis for axis in values if axis in named and is_packed(values[axis]))


def packing_of(size: Expression | int, values: Values) -> Packing | None:
    """How a dimension follows from a packed axis; None if it does not."""
    kind, arguments = call_of(str(size)) or ("", ())
    if kind not in ("sum", "len", "pages"):
        return None
    of = arguments[0]
    axes = [name for name in of.names if explain_lengths(values.get(name)) is None]
    lengths = _lengths(of, values) if len(axes) == 1 else None
    return None if lengths is None else Packing(kind, axes[0], lengths, arguments)


def _lengths(of: Expression, values: Values) -> tuple[int, ...] | None:
    """The list of lengths that an expression gives; None if it gives no list.

    `{q: …, k: …}` is a list if both sides are equal.
    """
    found = of.evaluate(values)
    if isinstance(found, Mapping):
        q, k = sides_of(found)
        return q if q == k else None
    if isinstance(found, Sequence) and all(type(each) is int and each >= 0 for each in found):
        return tuple(found)
    return None


def packed_dim(
    packing: Packing, size: int, tiles: Mapping[str, int], word: str | None = None
) -> Dim:
    """A dimension for findings: "sequence 2, position 17" of packed rows.

    `word` is its name in the spec, if any. Its tile is found by that name, the side or the axis
    (`q`, `seqlens`).
    """
    if packing.kind == "pages":
        return Dim(word or "page", size)
    if packing.kind == "len":
        return Dim(word or "sequence", size, region=range(size))
    words = (word or "position", *reversed(names_in(packing.arguments[0])))
    tile = next((tiles[each] for each in words if each in tiles), None)
    return Dim(
        word or "position",
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
    """A CPU tensor that follows from a packed axis (offsets, lengths, block table, …).

    `seed` shuffles pages.

    Raises:
        ValueError: the expression gives no list of lengths, or the page size or the number of
            unseen rows is invalid.
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
            unseen = _unseen_rows(decl, values, lengths)
            paging = Paging(lengths, _page_size(decl, values), seed, unseen)
            most = max(map(len, paging.pages), default=0)
            return paging.table(most).to(dtype)
    return torch.tensor(numbers, dtype=dtype)


def _page_size(decl: InputDecl, values: Values) -> int:
    size = decl.page_size
    found = size.evaluate(values) if isinstance(size, Expression) else size
    if type(found) is not int or found < 1:
        raise ValueError(f"page_size: {str(size)!r} is {found!r}; it must be an integer >= 1")
    return found


def _unseen_rows(decl: InputDecl, values: Values, lengths: Sequence[int]) -> list[int] | None:
    """How many rows at the begin of each sequence no query sees; None if not declared."""
    if decl.unseen is None:
        return None
    found = decl.unseen.evaluate(values)
    if type(found) is int:
        found = [found] * len(lengths)
    good = isinstance(found, Sequence) and len(found) == len(lengths)
    if not good or any(type(rows) is not int for rows in found):
        raise ValueError(
            f"unseen: {str(decl.unseen)!r} is {found!r}; it must be a whole number, or one for "
            f"each of {len(lengths)} sequences"
        )
    return [min(max(rows, 0), length) for rows, length in zip(found, lengths, strict=True)]


# Pools of pages -----------------------------------------------------------------------------------


def paging_of(
    declaration: DeclaredProblem, sizes: Sequence[Expression | int], values: Values, seed: int
) -> Paging | None:
    """The paging of a tensor `[pages(X, P), P, …]`; None for other shapes.

    Also None if no input is the block table of X and P, which assigns pages to sequences.
    """
    packing = packing_of(sizes[0], values) if len(sizes) > 1 else None
    if packing is None or packing.kind != "pages":
        return None
    of, page_size = packing.arguments
    for decl in declaration.inputs.values():
        if decl.pages_of == of and str(decl.page_size) == str(page_size) == str(sizes[1]):
            return Paging(packing.lengths, _page_size(decl, values), seed)
    return None


def stale_pool(pool: torch.Tensor, paging: Paging, seed: int) -> torch.Tensor:
    """A pool whose unused slots hold huge values or, with odd seeds, NaN.

    pool: [pages, page_size, ...]; values of sequences stay, and so do integers.
    """
    if not pool.is_floating_point():
        return pool
    factor = torch.nan if seed % 2 else poison_scale(str(pool.dtype).removeprefix("torch."))
    stale = (pool.float() * factor).to(pool.dtype)
    stale.flatten(0, 1)[paging.rows] = pool.flatten(0, 1)[paging.rows]
    return stale


def selected_lengths(value: Value, order: Sequence[int]) -> Value:
    """The value of a packed axis for the sequences `order`, in that order and notation."""
    return value_of(value, [[side[number] for number in order] for side in sides_of(value)])


def value_of(like: Value, sides: Sequence[Sequence[int]]) -> Value:
    """The value of a packed axis with these lengths, in the notation of another value."""
    queries, keys = (list(side) for side in sides)
    if not isinstance(like, Mapping):
        return queries
    form: dict[str, Value] = {"q": queries, "k": keys}
    if isinstance(like["q"], int) and len({*queries}) == 1:
        form["q"] = queries[0]
    if like.get("k", "same") == "same" and queries == keys:
        form["k"] = "same"
    return form


# All inputs ---------------------------------------------------------------------------------------


def generate_inputs(
    setup: CaseSetup, declaration: DeclaredProblem, distribution: str, seed: int
) -> dict[str, torch.Tensor]:
    """The inputs by name; their values depend on the order of declaration.

    Inputs derived from a packed axis, and the assignment of pages, depend on the seed of `setup`,
    not on `seed`.
    """
    source = generator(seed)
    inputs: dict[str, torch.Tensor] = {}
    ranges: dict[tuple[Any, int], str] = {}
    summed = summed_dim(declaration) if distribution in OF_PARTS.values() else None
    for index, (name, decl) in enumerate(declaration.inputs.items()):
        path = ("problem", "inputs", name)
        if decl.derived is not None:
            dtype = dtype_declared(setup, decl.dtype_text)
            try:
                made = derived_input(decl, setup.values, dtype, setup.seed)
            except ValueError as error:
                raise refuse(setup.spec, (*path, decl.derived[0]), str(error)) from error
        else:
            # Of a sum in parts, the input that has opposite signs is drawn as the first.
            number = index if summed is None else int(name != summed.input)
            made = _drawn(setup, decl, path, distribution, source, number)
            paging = paging_of(declaration, decl.sizes, setup.values, setup.seed)
            made = made if paging is None else stale_pool(made, paging, setup.seed)
            if decl.between is not None and not made.is_floating_point() and not decl.distinct:
                alike = (bounds_of(setup, decl, path), made.ndim)
                if alike in ranges:
                    _agree(made, inputs[ranges[alike]].cpu(), generator(seed ^ 0xA94EE))
                ranges[alike] = name
        inputs[name] = made.to(setup.device)
    return inputs


def _agree(made: torch.Tensor, other: torch.Tensor, source: torch.Generator) -> None:
    """Give a quarter of the rows the integers of another input, such as drafted tokens."""
    both = tuple(slice(min(sizes)) for sizes in zip(made.shape, other.shape, strict=True))
    shape = made[both].shape
    rows = (*shape[:-1], 1) if len(shape) > 1 else shape
    chosen = uniform(0, 3, source, rows, torch.int64) == 0
    made[both] = torch.where(chosen, other[both].to(made.dtype), made[both])


@dataclass(frozen=True)
class SummedDim:
    """A dimension of an input that results lack: they are sums over it.

    Or several in a row, as the taps and channels of a convolution. `axis` is the first: 0, -1 or
    one between; `sizes` are what the spec declares, `results` names of outputs and gradients. Of
    packed rows `by_sequence` says that results have the sum of each sequence.
    """

    input: str
    axis: int
    sizes: tuple[Expression | int, ...]
    results: tuple[str, ...]
    by_sequence: bool = False

    @property
    def size(self) -> str:
        """The size, or the product of sizes, as text."""
        return " * ".join(map(str, self.sizes))


def summed_dim(declaration: DeclaredProblem) -> SummedDim | None:
    """The first dimension, or the last, of an input that some results lack; None without one.

    Of results whose shapes are declared: gradients, and outputs with a `shape`.
    """
    inputs, outputs = declaration.inputs, declaration.outputs
    shapes = {f"d{name}": decl.sizes for name, decl in inputs.items() if decl.grad}
    if isinstance(outputs, Mapping):
        declared = {n: d.shape for n, d in outputs.items() if isinstance(d, OutputDecl)}
        shapes |= {name: shape for name, shape in declared.items() if shape is not None}
    free = {n: d.sizes for n, d in inputs.items() if d.derived is None and d.between is None}
    known = (each for each in summed_dims(free, shapes) if len(free[each.input]) > 1)
    return next((each for each in known if each.axis in OF_PARTS and len(each.sizes) == 1), None)


def summed_dims(
    inputs: Mapping[str, Sequence[Expression | int]],
    results: Mapping[str, Sequence[Expression | int]],
) -> Iterator[SummedDim]:
    """The dimensions of inputs that some results lack, the first ones and the last ones first.

    Both are sizes by name.
    """
    most = max(map(len, inputs.values()), default=0)

    def lacking(size: Expression | int) -> set[str]:
        if isinstance(size, int):
            return set()
        return {name for name, each in results.items() if str(size) not in map(str, each)}

    for axis in (0, -1, *range(1, most - 1)):
        for name, sizes in inputs.items():
            if len(sizes) < 1 + (axis != 0) or (axis > 0 and axis >= len(sizes) - 1):
                continue
            if found := lacking(sizes[axis]):
                mine = tuple(each for each in results if each in found)
                yield SummedDim(name, axis, (sizes[axis],), mine)
    for name, sizes in inputs.items():
        for axis in range(len(sizes) - 1):
            found, span = lacking(sizes[axis]), 1
            while axis + span < len(sizes) and (both := found & lacking(sizes[axis + span])):
                found, span = both, span + 1
            if span > 1 and not (axis and found & lacking(sizes[axis - 1])):
                mine = tuple(each for each in results if each in found)
                yield SummedDim(name, axis, tuple(sizes[axis : axis + span]), mine)


def _drawn(
    setup: CaseSetup,
    decl: InputDecl,
    path: tuple[str, ...],
    distribution: str,
    source: torch.Generator,
    index: int,
) -> torch.Tensor:
    shape = sizes_of(setup, decl.sizes, (*path, "shape"))
    dtype = dtype_declared(setup, decl.dtype_text)
    if decl.between is not None:
        low, high = bounds_of(setup, decl, path)
        if decl.distinct:
            return _distinct(setup, low, high, source, shape, path).to(dtype)
        made = uniform(low, high, source, shape, dtype)
        return made if dtype.is_floating_point else _with_ends(made, low, high, source)
    return draw(decl.fill or distribution, source, shape, dtype, index=index)


def _with_ends(made: torch.Tensor, low: int, high: int, source: torch.Generator) -> torch.Tensor:
    """An eighth of the elements is the least value, often a sentinel, and one is the largest.

    A sixteenth is the value beside each.
    """
    chosen = uniform(0, 15, source, tuple(made.shape), torch.int64)
    ends = {0: low, 8: low, 1: high, 9: high, 2: min(low + 1, high), 3: max(high - 1, low)}
    for number, end in ends.items():
        made.masked_fill_(chosen == number, end)
    return made


def ends_of_ranges(
    setup: CaseSetup, declaration: DeclaredProblem, inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The floating-point inputs with a range, with its ends in a sixteenth of the elements each."""
    source, found = generator(setup.seed ^ 0xE4D5), {}
    for name, decl in declaration.inputs.items():
        tensor = inputs[name]
        if decl.between is not None and tensor.is_floating_point():
            low, high = bounds_of(setup, decl, ("problem", "inputs", name))
            chosen = uniform(0, 15, source, tuple(tensor.shape), torch.int64).to(tensor.device)
            wide = tensor.double()  # PyTorch fills no float8
            wide.masked_fill_(chosen == 0, low).masked_fill_(chosen == 1, high)
            found[name] = wide.to(tensor.dtype)
    return found


def _distinct(
    setup: CaseSetup,
    low: int,
    high: int,
    source: torch.Generator,
    shape: tuple[int, ...],
    path: KeyPath,
) -> torch.Tensor:
    """Rows of different integers; with a `low` below 0 an eighth of them, and what a row lacks.

    The least and the largest are among them more often than others.
    """
    *rows, length = shape or (1,)
    least = max(low, 0)
    count = high - least + 1
    if length > count and low >= 0:
        message = f"a row of {length} has no {length} distinct numbers from {low} to {high}"
        raise refuse(setup.spec, (*path, "distinct"), message)
    # Of many numbers some, from the least to the largest.
    some = min(count, max(4 * length, 1024))
    rank = torch.rand(*rows, some, generator=source)
    rank[..., 0 :: max(1, some - 1)] *= _RANK_OF_ENDS
    order = rank.argsort(-1)[..., :length]
    made = torch.full((*rows, length), low)
    made[..., : order.shape[-1]] = least + order * (count - 1) // max(1, some - 1)
    if low < 0:
        made[uniform(0, 7, source, tuple(made.shape), torch.int64) == 0] = low
    return made.reshape(shape)


def bounds_of(setup: CaseSetup, decl: InputDecl, path: KeyPath) -> tuple[Any, Any]:
    """The least and the largest value of the input at `path`, integers if it has integers.

    Raises:
        SpecError: they are not, or not in this order.
    """
    floating, found = dtype_declared(setup, decl.dtype_text).is_floating_point, []
    path = (*path, "between")
    for index, bound in enumerate(decl.between or ()):
        value = _evaluated(setup, bound, (*path, index))
        if isinstance(value, bool) or not isinstance(value, (int, float) if floating else int):
            kind = "a number" if floating else "an integer"
            message = f"{str(bound)!r} is {value!r}; it must be {kind}"
            raise refuse(setup.spec, (*path, index), message)
        found.append(value)
    low, high = found
    if low > high:
        raise refuse(
            setup.spec,
            path,
            f"the lower bound {low} exceeds the upper bound {high}; write [lower, upper]",
        )
    return low, high


def _evaluated(setup: CaseSetup, number: Expression | float, path: KeyPath) -> object:
    try:
        return number if isinstance(number, int | float) else number.evaluate(setup.values)
    except ExpressionError as error:
        raise refuse(setup.spec, path, str(error)) from error


def dtype_declared(setup: CaseSetup, name: str) -> torch.dtype:
    """The dtype of a declaration: a name, or `$axis`."""
    return torch_dtype(setup.values[name[1:]] if name.startswith("$") else name)


def sizes_of(
    setup: CaseSetup, shape: tuple[Expression | int, ...], path: KeyPath
) -> tuple[int, ...]:
    """The sizes of a shape; raises SpecError at `path` if one is no integer >= 0."""
    sizes = []
    for axis, size in enumerate(shape):
        value = _evaluated(setup, size, (*path, axis))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise refuse(
                setup.spec, (*path, axis), f"{str(size)!r} is {value!r}; a size is an integer >= 0"
            )
        sizes.append(value)
    return tuple(sizes)
