"""Recognizes packed dimensions, and the roles of integer tensors.

It reads an `Interface` and calls nothing. Its evidence, in this order: the values in all recorded
calls, how kernels use them, and names.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.interface import Tensor, may_be_offsets
from tlmatrix.draft.sizes import COUNT, WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.draft.interface import Interface
    from tlmatrix.draft.sizes import Size

_OFFSETS = re.compile(r"cu_?seq|cu_?len|offset|indptr|row_?ptr|bounds", re.IGNORECASE)
_IDS = re.compile(
    r"(seq|segment|batch|expert|group|sequence)\w*_?(id|ids|idx|index)$|_ids?$", re.IGNORECASE
)
_POSITIONS = re.compile(r"pos(ition)?(_?ids?|s)?$", re.IGNORECASE)
_PADDED = re.compile(r"pad", re.IGNORECASE)
_COUNTS = re.compile(r"num|n_|batch|seqs|count|experts", re.IGNORECASE)
_LONGEST = re.compile(r"max_?(seq|len|new|q|k)|longest", re.IGNORECASE)
_OF_ROWS = {"sequence_ids_of": _IDS, "positions_of": _POSITIONS}
"""Keys of vectors with a number for each row, and their names."""

_FEW = 4
"""Fewest blocks that are known by the largest index of one."""

Lengths = tuple[tuple[int, ...], ...]
"""Numbers of sequences or rows in each call."""


@dataclass(frozen=True)
class Packing:
    """A packed dimension: rows of several sequences one after another.

    Attributes:
        axis: the axis of the sequence lengths.
        side: `q` or `k` if the axis has two sides.
        rows: the symbol of the total number of rows; None if only lengths are known.
        tile: the number of rows that a kernel processes per step.
        lengths: the lengths in each recorded call.
    """

    axis: str
    side: str | None = None
    rows: str | None = None
    tile: int | None = None
    lengths: Lengths = ()

    @property
    def expression(self) -> str:
        """The expression of the lengths."""
        return self.axis if self.side is None else f"{self.axis}.{self.side}"

    def each(self, measure: Callable[[Any], int]) -> tuple[int, ...]:
        """A measure of the lengths in each call."""
        return tuple(measure(lengths) if lengths else 0 for lengths in self.lengths)

    def vectors(self, tiles: Iterable[int]) -> Iterator[tuple[str, str, Lengths]]:
        """The vectors that describe it: their key in a spec, of which lengths, and their values.

        Starts also of ranges that are padded to whole tiles.
        """
        rows = [
            [(b, k) for b, length in enumerate(lengths) for k in range(length)]
            for lengths in self.lengths
        ]
        of = self.expression
        yield "lengths_of", of, self.lengths
        for tile in (1, *tiles):
            padded = [[-(-length // tile) * tile for length in each] for each in self.lengths]
            starts = tuple(tuple(accumulate((0, *each)))[: len(each)] for each in padded)
            yield "starts_of", of if tile == 1 else f"ceildiv({of}, {tile}) * {tile}", starts
        yield "sequence_ids_of", of, tuple(tuple(b for b, _ in each) for each in rows)
        yield "positions_of", of, tuple(tuple(k for _, k in each) for each in rows)


@dataclass(frozen=True)
class Role:
    """The role of an integer tensor: a key of an input in a spec, and its value."""

    key: str
    of: str | tuple[str, str]
    page_size: str | int | None = None


@dataclass(frozen=True)
class Recognition:
    """The recognized meaning of parameters.

    Attributes:
        packings: the packed dimensions.
        roles: the roles of integer tensors.
        dims: expressions for symbols that are not axes.
        numbers: expressions for arguments that are not axes.
    """

    packings: tuple[Packing, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    dims: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)


def recognize(interface: Interface) -> Recognition:
    """Recognize the meaning of the parameters of an interface."""
    return _Recognizer(interface).found()


def substitute(size: Size, dims: Mapping[str, str]) -> Size:
    """A dimension with expressions in place of its symbols."""
    if not isinstance(size, str):
        return size
    if size in dims:
        return dims[size]
    text = WORD.sub(lambda word: dims.get(word.group(), word.group()), size)
    for length in re.findall(r"len\([\w.]+\)", text):
        text = text.replace(f"{length} + 1 - 1", length)
    return text


def longest_of(packings: Sequence[Packing], name: str) -> Packing | None:
    """The packing whose longest length an argument is by its name, such as `max_seqlen_k`."""
    if not packings or not _LONGEST.search(name):
        return None
    return next((e for e in packings if e.side and name.endswith(e.side)), packings[0])


class _Recognizer:
    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.used = interface.uses
        self.given = interface.tensors
        self.integers = {each.name: each for each in self.given if each.integer}
        self.vectors = {n: each for n, each in self.integers.items() if len(each.shape) == 1}
        self.shapes = {each.name: each.shape for each in (*self.given, *interface.results)}
        self.sizes = interface.symbols
        self.packings: list[Packing] = []
        self.roles: dict[str, Role] = {}
        self.dims: dict[str, str] = {}
        self.numbers: dict[str, str] = {}

    def found(self) -> Recognition:
        """Recognize everything, beginning with the packings that the rest refers to."""
        self._by_offsets()
        for name, tensor in self.vectors.items():
            if not self.packings:
                self._by_starts_and_lengths(name, tensor)
        for by in (self._by_lengths, self._by_ids):
            for name, tensor in self.vectors.items():
                if not self.packings:
                    by(name, tensor)
        self._vectors_beside()
        self._tables()
        self._indices()
        self._ends_of_ranges()
        self._longest_dims()
        self._numbers()
        return Recognition(tuple(self.packings), self.roles, self.dims, self.numbers)

    # Packings ------------------------------------------------------------------------------

    def _by_offsets(self) -> None:
        rows = {name: self._rows_of(name) for name in self.vectors if self._is_offsets(name)}
        distinct = list(dict.fromkeys(symbol for symbol in rows.values() if symbol is not None))
        sides: Mapping[str, str] = {}
        batches = {self.vectors[name].shape for name in rows}
        if len(distinct) == 2 and len(batches) == 1:
            first, second = (next(n for n, s in rows.items() if s == each) for each in distinct)
            swapped = first.lower().endswith(("k", "kv")) or second.lower().endswith("q")
            sides = dict(zip(distinct, ("k", "q") if swapped else ("q", "k"), strict=True))
        for symbol in sorted(distinct, key=lambda symbol: sides.get(symbol) == "k"):
            first = next(name for name, other in rows.items() if other == symbol)
            axis = self._axis_name(first, taken=not sides)
            values = self.vectors[first].values
            lengths = tuple(tuple(b - a for a, b in pairwise(each)) for each in values)
            self._pack(axis, sides.get(symbol), symbol, lengths)
        for name, rows_of in rows.items():
            for packing in self.packings:
                if packing.rows == rows_of:
                    self._set(name, "offsets_of", packing, more=1)

    def _is_offsets(self, name: str) -> bool:
        tensor = self.vectors[name]
        if tensor.seen:
            ends = [values[-1] for values in tensor.values if values]
            fits = bool(self._with_size(tensor, ends)) or len({*ends}) > 1
            return bool(ends) and may_be_offsets(tensor.seen) and max(ends) > 1 and fits
        if name in self.used.consecutive:
            return name in self.used.bounds or any(self._selected_by(name))
        return bool(_OFFSETS.search(name)) and str(tensor.shape[0]).endswith("+ 1")

    def _by_starts_and_lengths(self, name: str, tensor: Tensor) -> None:
        rows = self._rows_of(name)
        alike = {n: e for n, e in self.vectors.items() if n != name and e.shape == tensor.shape}
        counts = [
            other
            for other in alike
            if other in self.used.bounds and not self._selects_as(other, "start")
            if rows not in self._selected_by(other)
        ]
        if rows is None or not counts or not self._selects_as(name, "start"):
            return
        lengths = self.vectors[counts[0]].values
        packing = self._pack(self._axis_name(name), None, rows, lengths)
        self._set(name, "starts_of", packing)
        self._set(counts[0], "lengths_of", packing)
        for other in alike.keys() - self.roles.keys():
            # Starts of ranges that are padded to whole tiles.
            if packing.tile and (_PADDED.search(other) or rows in self._selected_by(other)):
                padded = f"ceildiv({packing.expression}, {packing.tile}) * {packing.tile}"
                self.roles[other] = Role("starts_of", padded)

    def _by_lengths(self, name: str, tensor: Tensor) -> None:
        """Recognize packings whose lengths alone are given: in all calls they sum to a size."""
        sums = [sum(values) for values in tensor.values]
        sizes = (size for size in self._with_size(tensor, sums) if size not in tensor.shape)
        rows = next(filter(_is_symbol, sizes), None)
        whole = all(min(values, default=0) >= 0 for values in tensor.values)
        spread = any(len(values) > 1 and sum(values) > len(values) for values in tensor.values)
        if whole and rows and spread:
            packing = self._pack(self._axis_name(name), None, str(rows), tensor.values)
            self._set(name, "lengths_of", packing)

    def _by_ids(self, name: str, tensor: Tensor) -> None:
        """Recognize packings without offsets or starts, from sorted sequence ids of rows."""
        (rows,) = tensor.shape
        others = [each for each in self.given if each is not tensor and rows in each.shape]
        ordered = all(
            list(values) == sorted(values) and len({*values}) < len(values)
            for values in tensor.values
        )
        if _IDS.search(name) and _is_symbol(rows) and others and ordered:
            lengths = tuple(
                tuple(values.count(k) for k in range(max(values, default=-1) + 1))
                for values in tensor.values
            )
            packing = self._pack("seqlens", None, str(rows), lengths)
            self.roles[name] = Role("sequence_ids_of", packing.expression)

    def _pack(self, axis: str, side: str | None, rows: str | None, lengths: Lengths) -> Packing:
        tiles = [
            self.used.tile(name, dim)
            for name, shape in self.shapes.items()
            for dim, size in enumerate(shape)
            if size == rows
        ]
        tile = max((size for size in tiles if size is not None), default=None)
        packing = Packing(axis, side, rows, tile, lengths)
        self.packings.append(packing)
        if rows is not None:
            column = self.sizes.get(rows)
            # Not a dimension beside it, which has its size by chance.
            beside = {size for shape in self.shapes.values() if rows in shape for size in shape}
            alike = [n for n, sizes in self.sizes.items() if sizes and sizes == column]
            own = [rows, *(name for name in alike if name not in beside)]
            self.dims |= dict.fromkeys(own, f"sum({packing.expression})")
        return packing

    def _axis_name(self, of: str, *, taken: bool = False) -> str:
        text = " ".join([of, *map(str, self.integers[of].shape)]).lower()
        base = "expert_counts" if "expert" in text else "seqlens"
        used = {packing.axis for packing in self.packings} if taken else set()
        return base if base not in used else f"{of.lower()}_lengths"

    def _set(self, name: str, key: str, packing: Packing, *, more: int = 0) -> None:
        """Set the role of a vector with the number of sequences plus `more`."""
        self.roles[name] = Role(key, packing.expression)
        self._batch_is(self.vectors[name].shape[0], packing.axis, more=more)

    def _batch_is(self, size: Size, axis: str, *, more: int = 0) -> None:
        """Set a dimension to the number of sequences of an axis plus `more`."""
        count = f"len({axis})"
        if _is_symbol(size):
            self.dims[str(size)] = f"{count} + {more}" if more else count
        elif str(size).endswith(f" + {more}"):
            symbol = str(size).removesuffix(f" + {more}")
            if symbol.isidentifier():
                self.dims[symbol] = count

    # What selects what ---------------------------------------------------------------------

    def _with_size(self, tensor: Tensor, sizes: Sequence[int]) -> list[Size]:
        """The dimensions of other tensors that have these sizes in the calls."""
        return [
            shape
            for other in self.given
            if other is not tensor and sizes
            for dim, shape in enumerate(other.shape)
            if list(other.sizes(dim)) == list(sizes)
        ]

    def _selected_by(self, name: str, kind: str | None = None) -> list[Size]:
        """The dimensions of which an integer tensor selects elements."""
        return [
            self.shapes[each.tensor][each.dim]
            for each in sorted(self.used.selections, key=str)
            if each.source == name and kind in (None, each.kind) and each.tensor in self.shapes
        ]

    def _selects_as(self, name: str, kind: str) -> bool:
        return any(each.source == name and each.kind == kind for each in self.used.selections)

    def _rows_of(self, name: str) -> str | None:
        """The symbol of the rows that offsets index."""
        chosen = self._selected_by(name, "start")
        tensor = self.integers[name]
        if tensor.values and all(tensor.values):
            totals = tuple(values[-1] for values in tensor.values)
            chosen = [size for size in chosen if self.sizes.get(str(size)) == totals]
            chosen = chosen or self._with_size(tensor, totals)
        symbols = [str(size) for size in chosen if _is_symbol(size)]
        return max(sorted(set(symbols)), key=symbols.count, default=None)

    # Roles ---------------------------------------------------------------------------------

    def _vectors_beside(self) -> None:
        """Recognize vectors with a number for each sequence, or for each row, of either side."""
        passed = [v for e in self.interface.arguments if e.kind == "tile" for v in e.values]
        for name, tensor in self.vectors.items():
            if not self.packings or name in self.roles:
                continue
            counts = self._counts_sequences(tensor)
            for packing in self.packings:
                of_rows = tensor.shape == (packing.rows,)
                keys = [*_OF_ROWS] if of_rows else ["lengths_of", "starts_of"] if counts else []
                found = [(key, packing.expression) for key in keys]
                if tensor.values:
                    tiles = sorted({packing.tile, *passed} - {None, 1})
                    every = [e for e in packing.vectors(tiles) if e[2] == tensor.values]
                    found = [(key, of) for key, of, _ in every if key in keys]
                elif of_rows:
                    found = [each for each in found if _OF_ROWS[each[0]].search(name)]
                elif self._selects_as(name, "start"):
                    found.reverse()
                if found:
                    self.roles[name] = Role(*found[0])
                    break
            if name not in self.roles and counts and tensor.values:
                other = self._other_side(tensor.values)
                if other is not None:
                    self.roles[name] = Role("lengths_of", other.expression)
            if name in self.roles and counts:
                self._batch_is(tensor.shape[0], self.packings[0].axis)
            if name in self.roles and self.roles[name].key == "positions_of":
                for size in self._selected_by(name):
                    self._longest(size, packing)

    def _counts_sequences(self, tensor: Tensor) -> bool:
        """Whether a vector has a number for each sequence."""
        if substitute(tensor.shape[0], self.dims) == f"len({self.packings[0].axis})":
            return True
        lengths = self.packings[0].lengths
        return bool(lengths) and tensor.sizes(0) == tuple(map(len, lengths))

    def _other_side(self, values: Lengths) -> Packing | None:
        """Recognize lengths of a second side, such as cached keys."""
        if len(self.packings) != 1 or min(min(each, default=0) for each in values) < 0:
            return None
        first = self.packings[0]
        named = replace(first, side="q")
        self.packings = [named]
        self.dims = {
            symbol: text.replace(f"sum({first.axis})", f"sum({first.axis}.q)")
            for symbol, text in self.dims.items()
        }
        self.roles = {name: Role(role.key, named.expression) for name, role in self.roles.items()}
        return self._pack(first.axis, "k", None, values)

    def _tables(self) -> None:
        """Recognize page tables: matrices of indices into the first dimension of a pool."""
        for name, tensor in self.integers.items():
            if len(tensor.shape) != 2 or not self.packings or name in self.roles:
                continue
            pools = [self.shapes[pool] for pool in self._pools(name, tensor)]
            if not pools:
                continue
            packing = self.packings[-1]
            self._batch_is(tensor.shape[0], packing.axis)
            size = pools[0][1]
            self.roles[name] = Role("pages_of", packing.expression, size)
            for pool in filter(_is_symbol, (pool[0] for pool in pools)):
                self.dims[str(pool)] = f"pages({packing.expression}, {size})"
            if _is_symbol(tensor.shape[1]):
                self.dims[str(tensor.shape[1])] = f"max(ceildiv({packing.expression}, {size}))"

    def _pools(self, name: str, table: Tensor) -> list[str]:
        used = [
            each.tensor
            for each in self.used.selections
            if each.source == name and each.dim == 0 and len(self.shapes.get(each.tensor, ())) > 2
        ]
        if used or not table.values:
            return sorted(set(used))
        return [
            each.name
            for each in self.given
            if len(each.shape) > 2 and not each.integer and _within(table, each.sizes(0))
        ]

    def _indices(self) -> None:
        """Recognize the remaining integers as indices into a dimension, or numbers in a range."""
        for name, tensor in self.integers.items():
            if name in self.roles or name in self.interface.pure_outputs:
                continue
            selected = self._blocks(tensor) or self._selected_by(name, "index")
            selected = selected or self._may_index(tensor)
            if selected:
                size = substitute(selected[0], self.dims)
                # A negative number marks an index that is ignored.
                named = any(each.name == "ignore_index" for each in self.interface.arguments)
                negative = min((least for least, _ in tensor.limits), default=0) < 0
                least = "-1" if named or negative else "0"
                self.roles[name] = Role("between", (least, f"{size} - 1"))

    def _ends_of_ranges(self) -> None:
        """Recognize two vectors of which one has the starts of ranges and the other their ends.

        Starts are in the first half of the dimension, so that no range ends before it starts.
        """
        starts = [name for name, role in self.roles.items() if role.key == "between"]
        for start, (end, tensor) in product(starts, self.integers.items()):
            first, role = self.integers[start], self.roles[start]
            size = str(role.of[1]).removesuffix(" - 1")
            if end == start or first.shape != tensor.shape or role.of[0] != "0":
                continue
            pairs = [
                p
                for two in zip(first.values, tensor.values, strict=False)
                for p in zip(*two, strict=True)
            ]
            ordered = all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
            least = max((min(each, default=0) for each in tensor.values), default=0)
            column = self.sizes.get(size, ())
            fits = all(max(v, default=0) <= n for v, n in zip(tensor.values, column, strict=False))
            if ordered and least > 0 and column and fits:
                self.roles[start] = Role("between", ("0", f"{size} // 2"))
                self.roles[end] = Role("between", (f"{size} // 2", size))

    def _blocks(self, tensor: Tensor) -> list[Size]:
        """The numbers of blocks of dimensions that are one more than the largest value.

        Of blocks of a size that callers pass; few blocks say nothing.
        """
        most = tuple(most + 1 for _, most in tensor.limits)
        every = (*self.interface.arguments, *self.interface.construct)
        blocks = {
            v for e in every if e.kind == "tile" for v in e.values if type(v) is int and v > 1
        }
        return [
            f"ceildiv({size}, {block})"
            for other in self.given
            for dim, size in enumerate(other.shape)
            for block in sorted(blocks)
            if min(most, default=0) >= _FEW and not other.integer
            if most == tuple(-(-each // block) for each in other.sizes(dim))
        ]

    def _may_index(self, tensor: Tensor) -> list[Size]:
        """Dimensions and counts that all values of all calls are below, the smallest first.

        None if all are 0, as the results of kernels are that were only traced.
        """
        if not any(map(any, tensor.limits)):
            return []
        found: dict[Size, tuple[int, ...]] = {
            other.shape[dim]: other.sizes(dim)
            for other in self.given
            if not other.integer and other.name not in self.interface.pure_outputs
            for dim in range(len(other.shape))
            if _within(tensor, other.sizes(dim))
        }
        # Of its own dimensions one if it fits no other.
        outside = {size: column for size, column in found.items() if size not in tensor.shape}
        found = outside or found
        for each in (*self.interface.arguments, *self.interface.construct):
            column = tuple(value for value in each.values if type(value) is int)
            counts = each.kind == "size" and _COUNTS.search(each.name)
            fits = len(column) == len(tensor.limits) and _within(tensor, column)
            if counts and fits and each.name not in tensor.shape and not self.interface.factory:
                found.setdefault(each.name, column)
        return sorted((size for size in found if size != 1), key=lambda size: found[size])

    def _longest_dims(self) -> None:
        """Recognize dimensions with the length of the longest sequence."""
        for name, role in self.roles.items():
            for packing in self.packings:
                if role.of == packing.expression:
                    for size in self._selected_by(name, "within"):
                        self._longest(size, packing)

    def _longest(self, size: Size, packing: Packing) -> None:
        if _is_symbol(size) and size not in self.dims:
            longest = packing.each(max)
            if not packing.lengths or self.sizes.get(str(size), longest) == longest:
                self.dims[str(size)] = f"max({packing.expression})"

    # Numbers -------------------------------------------------------------------------------

    def _numbers(self) -> None:
        sizes = (str(size) for shape in self.shapes.values() for size in shape)
        parts = {number for size in sizes for number in re.findall(r"\d+", size)}
        for argument in (*self.interface.arguments, *self.interface.construct):
            name = argument.name
            # A size of a tile that callers pass may be the size of a dimension in all calls.
            tied = not argument.default and not self.interface.factory
            tied = argument.kind == "tile" and (tied or len({*map(str, argument.values)}) > 1)
            tied = tied and str(argument.value) not in parts
            if name in self.dims:
                self.numbers[name] = self.dims[name]
            elif argument.kind == "size" or name in self.sizes or tied:
                found = self._recorded_number(name, argument.values)
                if found is not None and not (tied and COUNT.search(found)):
                    self.numbers[name] = found
                    if name in self.sizes:
                        self.dims.setdefault(name, found)
        for each in self.interface.parameters:
            if not isinstance(each, Tensor) and each.dtype.startswith("int"):
                packing = longest_of(self.packings, each.name)
                if packing is not None:
                    self.numbers[each.name] = f"max({packing.expression})"

    def _recorded_number(self, name: str, values: tuple[object, ...]) -> str | None:
        sizes = [value for value in values if type(value) is int]
        left_out = None in values and len({*sizes}) > 1  # of one size that is so by chance
        if not sizes or (len(sizes) < len(values) and not left_out):
            return None

        def fits(column: Sequence[int]) -> bool:
            """Whether it is the argument in all calls that have it."""
            pairs = zip(values, column, strict=False)
            return len(values) == len(column) and all(a is None or a == b for a, b in pairs)

        known = [each for each in self.packings if each.lengths]
        for each in known:
            longest, step = each.each(max), math.gcd(128, *sizes)
            if fits(longest) and name not in self.sizes:
                return f"max({each.expression})"
            padded = tuple(-(-length // step) * step for length in longest)
            if name in self.sizes and "max" in name.lower() and fits(padded):
                text = f"ceildiv(max({each.expression}), {step}) * {step}"
                self.dims[name] = text if step > 1 else f"max({each.expression})"
                return self.dims[name]
            if fits(each.each(sum)):
                return f"sum({each.expression})"
        if (packing := longest_of(self.packings, name)) is not None:
            return f"max({packing.expression})"
        counts = known if _COUNTS.search(name) else []
        if axis := next((each.axis for each in counts if fits(each.each(len))), ""):
            return f"len({axis})"
        equal = [symbol for symbol, column in self.sizes.items() if column and fits(column)]
        only = len(equal) == 1 and min(self.sizes[equal[0]]) > 2
        return equal[0] if only and equal[0] not in {*self.dims, name} else None


def _is_symbol(size: Size | None) -> bool:
    return isinstance(size, str) and size.isidentifier()


def _within(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
    """Whether the values of each call are below a size."""
    pairs = zip(tensor.limits, sizes, strict=False)
    return bool(tensor.limits) and all(most < size for (_, most), size in pairs)
