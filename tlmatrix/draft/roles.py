"""Recognizes packed dimensions, and the roles of integer tensors.

It reads an `Interface` and calls nothing. Its evidence, in this order: the values in all recorded
calls, how kernels use them, and names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.interface import Tensor, may_be_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tlmatrix.draft.interface import Argument, Interface
    from tlmatrix.draft.sizes import Size

_OFFSETS = re.compile(r"cu_?seq|cu_?len|offset|indptr|row_?ptr|bounds", re.IGNORECASE)
_IDS = re.compile(
    r"(seq|segment|batch|expert|group|sequence)\w*_?(id|ids|idx|index)$|_ids?$", re.IGNORECASE
)
_POSITIONS = re.compile(r"pos(ition)?(_?ids?|s)?$", re.IGNORECASE)
_PADDED = re.compile(r"pad", re.IGNORECASE)
_COUNTS = re.compile(r"num|n_|batch|seqs|count|experts", re.IGNORECASE)
_LONGEST = re.compile(r"max_?(seq|len|new|q|k)|longest", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_]\w*")

Lengths = tuple[tuple[int, ...], ...]
"""The lengths of sequences in each call."""


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
    lengths: tuple[tuple[int, ...], ...] = ()

    @property
    def expression(self) -> str:
        """The expression of the lengths."""
        return self.axis if self.side is None else f"{self.axis}.{self.side}"


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
    text = _WORD.sub(lambda word: dims.get(word.group(), word.group()), size)
    for length in re.findall(r"len\([\w.]+\)", text):
        text = text.replace(f"{length} + 1 - 1", length)
    return text


class _Recognizer:
    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.given = interface.tensors
        self.integers = {each.name: each for each in self.given if each.integer}
        self.shapes = {each.name: each.shape for each in (*self.given, *interface.results)}
        self.sizes = interface.symbols
        self.packings: list[Packing] = []
        self.roles: dict[str, Role] = {}
        self.dims: dict[str, str] = {}
        self.numbers: dict[str, str] = {}

    def found(self) -> Recognition:
        """Recognize everything, beginning with the packings that the rest refers to."""
        self._by_offsets()
        self._by_starts_and_lengths()
        self._by_lengths()
        self._by_ids()
        self._lengths_beside()
        self._ids_and_positions()
        self._tables()
        self._indices()
        self._longest_dims()
        self._numbers()
        return Recognition(tuple(self.packings), self.roles, self.dims, self.numbers)

    # Packings ------------------------------------------------------------------------------

    def _by_offsets(self) -> None:
        rows = {name: self._rows_of(name) for name in self.integers if self._is_offsets(name)}
        distinct = list(dict.fromkeys(symbol for symbol in rows.values() if symbol is not None))
        sides: Mapping[str, str] = {}
        batches = {self._batch_symbol(name) for name in rows}
        if len(distinct) == 2 and len(batches) == 1:
            first, second = (next(n for n, s in rows.items() if s == each) for each in distinct)
            swapped = first.lower().endswith(("k", "kv")) or second.lower().endswith("q")
            sides = dict(zip(distinct, ("k", "q") if swapped else ("q", "k"), strict=True))
        for symbol in sorted(distinct, key=lambda symbol: sides.get(symbol) == "k"):
            first = next(name for name, other in rows.items() if other == symbol)
            axis = self._axis_name(first, taken=not sides)
            self._pack(axis, sides.get(symbol), symbol, self._lengths(first))
        for name, rows_of in rows.items():
            for packing in self.packings:
                if packing.rows == rows_of:
                    self.roles[name] = Role("offsets_of", packing.expression)
                    self._batch_is(self.integers[name].shape[0], packing.axis, more=1)

    def _pack(self, axis: str, side: str | None, rows: str | None, lengths: Lengths) -> Packing:
        tiles = [
            self.interface.uses.tile(name, dim)
            for name, shape in self.shapes.items()
            for dim, size in enumerate(shape)
            if size == rows
        ]
        tile = max((size for size in tiles if size is not None), default=None)
        packing = Packing(axis, side, rows, tile, lengths)
        self.packings.append(packing)
        if rows is not None:
            column = self.sizes.get(rows)
            alike = [name for name, sizes in self.sizes.items() if sizes and sizes == column]
            self.dims |= dict.fromkeys([rows, *alike], f"sum({packing.expression})")
        return packing

    def _axis_name(self, of: str, *, taken: bool) -> str:
        text = " ".join([of, *map(str, self.integers[of].shape)]).lower()
        base = "expert_counts" if "expert" in text else "seqlens"
        used = {packing.axis for packing in self.packings} if taken else set()
        return base if base not in used else f"{of.lower()}_lengths"

    def _is_offsets(self, name: str) -> bool:
        tensor = self.integers[name]
        if len(tensor.shape) != 1:
            return False
        used = self.interface.uses
        if tensor.seen:
            ends = [values[-1] for values in tensor.values if values]
            fits = bool(self._with_size(tensor, ends)) or len({*ends}) > 1
            return bool(ends) and may_be_offsets(tensor.seen) and max(ends) > 1 and fits
        acts = name in used.bounds or any(each.source == name for each in used.selections)
        if name in used.consecutive:
            return acts
        return bool(_OFFSETS.search(name)) and str(tensor.shape[0]).endswith("+ 1")

    def _with_size(self, tensor: Tensor, sizes: Sequence[int]) -> list[Size]:
        """The dimensions of other tensors that have these sizes in the calls."""
        return [
            shape
            for other in self.given
            if other is not tensor
            for dim, shape in enumerate(other.shape)
            if list(other.sizes(dim)) == list(sizes)
        ]

    def _rows_of(self, name: str) -> str | None:
        """The symbol of the rows that offsets index."""
        used = self.interface.uses
        chosen = [
            self.shapes[each.tensor][each.dim]
            for each in used.selections
            if each.source == name and each.kind == "start" and each.tensor in self.shapes
        ]
        tensor = self.integers[name]
        if tensor.values:
            totals = tuple(values[-1] for values in tensor.values)
            chosen = [size for size in chosen if self.sizes.get(str(size)) == totals]
            chosen = chosen or self._with_size(tensor, totals)
        symbols = [size for size in chosen if isinstance(size, str) and size.isidentifier()]
        return max(sorted(set(symbols)), key=symbols.count, default=None)

    def _lengths(self, name: str) -> tuple[tuple[int, ...], ...]:
        found = self.integers[name].values
        return tuple(tuple(b - a for a, b in pairwise(values)) for values in found)

    def _batch_symbol(self, name: str) -> str:
        return str(self.integers[name].shape[0])

    def _batch_is(self, size: Size, axis: str, *, more: int = 0) -> None:
        """Set a dimension to the number of sequences of an axis plus `more`."""
        if not isinstance(size, str):
            return
        count = f"len({axis})"
        if size.isidentifier():
            self.dims[size] = f"{count} + {more}" if more else count
        elif size.endswith(f" + {more}"):
            symbol = size.removesuffix(f" + {more}")
            if symbol.isidentifier():
                self.dims[symbol] = count

    def _by_starts_and_lengths(self) -> None:
        """Recognize packings without offsets, from the starts and the lengths of sequences."""
        used = self.interface.uses
        for name, tensor in self.integers.items():
            if self.packings or len(tensor.shape) != 1:
                continue
            rows = self._rows_of(name)
            beside = [
                other
                for other, each in self.integers.items()
                if other != name and each.shape == tensor.shape
                and other in used.bounds and not self._selects_as(other, "start")
            ]  # fmt: skip
            counts = [other for other in beside if not self._selects(other, rows)]
            if rows is None or not counts or not self._selects_as(name, "start"):
                continue
            lengths = self.integers[counts[0]].values
            packing = self._pack(self._axis_name(name, taken=False), None, rows, lengths)
            self.roles[name] = Role("starts_of", packing.expression)
            self.roles[counts[0]] = Role("lengths_of", packing.expression)
            self._batch_is(tensor.shape[0], packing.axis)
            tile = packing.tile
            for other, each in self.integers.items():
                # Starts of ranges that are padded to whole tiles.
                if other in self.roles or each.shape != tensor.shape or tile is None:
                    continue
                if _PADDED.search(other) or self._selects(other, rows):
                    padded = f"ceildiv({packing.expression}, {tile}) * {tile}"
                    self.roles[other] = Role("starts_of", padded)

    def _by_lengths(self) -> None:
        """Recognize packings whose lengths alone are given: in all calls they sum to a size."""
        for name, tensor in self.integers.items():
            if self.packings or name in self.roles or len(tensor.shape) != 1 or not tensor.values:
                continue
            sums = [sum(values) for values in tensor.values]
            whole = all(min(values, default=0) >= 0 for values in tensor.values)
            rows = [
                size
                for size in self._with_size(tensor, sums)
                if isinstance(size, str) and size.isidentifier() and size not in tensor.shape
            ]
            spread = any(len(values) > 1 and sum(values) > len(values) for values in tensor.values)
            if whole and rows and spread:
                axis = self._axis_name(name, taken=False)
                packing = self._pack(axis, None, rows[0], tensor.values)
                self.roles[name] = Role("lengths_of", packing.expression)
                self._batch_is(tensor.shape[0], packing.axis)

    def _selects_as(self, name: str, kind: str) -> bool:
        selections = self.interface.uses.selections
        return any(each.source == name and each.kind == kind for each in selections)

    def _selects(self, name: str, symbol: str | None) -> bool:
        return any(
            each.source == name and self.shapes.get(each.tensor, ())[each.dim : each.dim + 1]
            == (symbol,)
            for each in self.interface.uses.selections
        )  # fmt: skip

    def _by_ids(self) -> None:
        """Recognize packings without offsets or starts, from sorted sequence ids of rows."""
        for name, tensor in self.integers.items():
            if self.packings or not _IDS.search(name) or len(tensor.shape) != 1:
                continue
            (rows,) = tensor.shape
            others = [each for each in self.given if each is not tensor and rows in each.shape]
            ordered = all(
                list(values) == sorted(values) and len({*values}) < len(values)
                for values in tensor.values
            )
            if isinstance(rows, str) and rows.isidentifier() and others and ordered:
                lengths = tuple(
                    tuple(values.count(k) for k in range(max(values, default=-1) + 1))
                    for values in tensor.values
                )
                packing = self._pack("seqlens", None, rows, lengths)
                self.roles[name] = Role("sequence_ids_of", packing.expression)

    # Roles ---------------------------------------------------------------------------------

    def _lengths_beside(self) -> None:
        """Recognize vectors with one number per sequence: lengths or starts of either side."""
        for name, tensor in self.integers.items():
            if not self.packings or name in self.roles or len(tensor.shape) != 1:
                continue
            (size,) = tensor.shape
            if not self._counts_sequences(size, tensor):
                continue
            packing = self._of_lengths(tensor)
            if packing is None and tensor.values:
                packing = self._other_side(tensor.values)
            elif packing is None:
                packing = self.packings[0]
            if packing is None:
                continue
            self._batch_is(size, packing.axis)
            starts = _starts(packing)
            is_start = self._selects_as(name, "start") and tensor.values in ((), starts)
            self.roles[name] = Role("starts_of" if is_start else "lengths_of", packing.expression)

    def _counts_sequences(self, size: Size, tensor: Tensor) -> bool:
        count = f"len({self.packings[0].axis})"
        if substitute(size, self.dims) == count:
            return True
        lengths = self.packings[0].lengths
        return bool(lengths) and tensor.sizes(0) == tuple(map(len, lengths))

    def _of_lengths(self, tensor: Tensor) -> Packing | None:
        for packing in self.packings:
            if tensor.values and tensor.values in (packing.lengths, _starts(packing)):
                return packing
        return None

    def _other_side(self, values: Lengths) -> Packing | None:
        """Recognize lengths of a second side, such as cached keys."""
        if len(self.packings) != 1 or min(min(each, default=0) for each in values) < 0:
            return None
        first = self.packings[0]
        named = Packing(first.axis, "q", first.rows, first.tile, first.lengths)
        self.packings = [named]
        self.dims = {
            symbol: text.replace(f"sum({first.axis})", f"sum({first.axis}.q)")
            for symbol, text in self.dims.items()
        }
        self.roles = {name: Role(role.key, named.expression) for name, role in self.roles.items()}
        return self._pack(first.axis, "k", None, values)

    def _ids_and_positions(self) -> None:
        for name, tensor in self.integers.items():
            packing = next((each for each in self.packings if tensor.shape == (each.rows,)), None)
            if packing is None or name in self.roles:
                continue
            rows = [
                [(b, k) for b, length in enumerate(lengths) for k in range(length)]
                for lengths in packing.lengths
            ]
            ids = tuple(tuple(b for b, _ in each) for each in rows)
            positions = tuple(tuple(k for _, k in each) for each in rows)
            if tensor.values:
                is_id, is_position = tensor.values == ids, tensor.values == positions
            else:
                is_id, is_position = bool(_IDS.search(name)), bool(_POSITIONS.search(name))
            if is_position:
                self.roles[name] = Role("positions_of", packing.expression)
                for each in self.interface.uses.selections:
                    if each.source == name and each.tensor in self.shapes:
                        self._longest(self.shapes[each.tensor][each.dim], packing)
            elif is_id:
                self.roles[name] = Role("sequence_ids_of", packing.expression)

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
            pages = f"pages({packing.expression}, {size})"
            for pool in pools:
                if isinstance(pool[0], str) and pool[0].isidentifier():
                    self.dims[pool[0]] = pages
            columns = tensor.shape[1]
            if isinstance(columns, str) and columns.isidentifier():
                self.dims[columns] = f"max(ceildiv({packing.expression}, {size}))"

    def _pools(self, name: str, table: Tensor) -> list[str]:
        used = [
            each.tensor
            for each in self.interface.uses.selections
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
            selected = [
                self.shapes[each.tensor][each.dim]
                for each in sorted(self.interface.uses.selections, key=str)
                if each.source == name and each.kind == "index" and each.tensor in self.shapes
            ]
            if not selected and tensor.values:
                selected = self._may_index(tensor)
            if selected:
                size = substitute(selected[0], self.dims)
                least = "-1" if self._ignores(name) else "0"
                self.roles[name] = Role("between", (least, f"{size} - 1"))

    def _may_index(self, tensor: Tensor) -> list[Size]:
        """Dimensions and counts that all values of all calls are below, the smallest first."""
        found: dict[Size, tuple[int, ...]] = {
            other.shape[dim]: other.sizes(dim)
            for other in self.given
            if not other.integer and other.name not in self.interface.pure_outputs
            for dim in range(len(other.shape))
            if _within(tensor, other.sizes(dim)) and other.shape[dim] not in tensor.shape
        }
        for each in (*self.interface.arguments, *self.interface.construct):
            column = tuple(value for value in each.values if type(value) is int)
            counts = each.kind == "size" and _COUNTS.search(each.name)
            fits = len(column) == len(tensor.values) and _within(tensor, column)
            if counts and fits and each.name not in tensor.shape and not self.interface.factory:
                found.setdefault(each.name, column)
        return sorted((size for size in found if size != 1), key=lambda size: found[size])

    def _ignores(self, name: str) -> bool:
        """Whether a negative number marks an ignored index."""
        named = any(each.name == "ignore_index" for each in self.interface.arguments)
        least = min((min(each, default=0) for each in self.integers[name].values), default=0)
        return named or least < 0

    def _longest_dims(self) -> None:
        """Recognize dimensions with the length of the longest sequence."""
        for each in sorted(self.interface.uses.selections, key=str):
            role = self.roles.get(each.source)
            if each.kind != "within" or role is None or each.tensor not in self.shapes:
                continue
            for packing in self.packings:
                if role.of == packing.expression:
                    self._longest(self.shapes[each.tensor][each.dim], packing)

    def _longest(self, size: Size, packing: Packing) -> None:
        if isinstance(size, str) and size.isidentifier() and size not in self.dims:
            longest = _each(max, packing)
            if not packing.lengths or self.sizes.get(size, longest) == longest:
                self.dims[size] = f"max({packing.expression})"

    # Numbers -------------------------------------------------------------------------------

    def _numbers(self) -> None:
        for argument in (*self.interface.arguments, *self.interface.construct):
            name = argument.name
            if name in self.dims:
                self.numbers[name] = self.dims[name]
            elif argument.kind == "size" or name in self.sizes or self._is_tied(argument):
                found = self._recorded_number(name, argument.values)
                if found is not None:
                    self.numbers[name] = found
        for each in self.interface.parameters:
            if not isinstance(each, Tensor) and each.dtype.startswith("int"):
                packing = self._longest_of(each.name)
                if packing is not None:
                    self.numbers[each.name] = f"max({packing.expression})"

    def _is_tied(self, argument: Argument) -> bool:
        """Whether a size of a tile that callers pass is the size of a dimension in all calls."""
        return argument.kind == "tile" and not argument.default and not self.interface.factory

    def _longest_of(self, name: str) -> Packing | None:
        if not self.packings or not _LONGEST.search(name):
            return None
        for packing in self.packings:
            if packing.side is not None and name.endswith(packing.side):
                return packing
        return self.packings[0]

    def _recorded_number(self, name: str, values: tuple[object, ...]) -> str | None:
        packing = self._longest_of(name)
        if not values or any(type(value) is not int for value in values):
            return None
        for each in self.packings:
            if each.lengths and values == _each(max, each) and name not in self.sizes:
                return f"max({each.expression})"
            if each.lengths and values == _each(sum, each):
                return f"sum({each.expression})"
        if packing is not None:
            return f"max({packing.expression})"
        for each in self.packings:
            if each.lengths and values == _each(len, each) and _COUNTS.search(name):
                return f"len({each.axis})"
        equal = [
            symbol for symbol, sizes in self.sizes.items() if sizes == values and min(sizes) > 2
        ]
        if len(equal) == 1 and equal[0] not in self.dims and equal[0] != name:
            return equal[0]
        return None


def _each(measure: Callable[[Any], int], packing: Packing) -> tuple[int, ...]:
    """A measure of the lengths in each call."""
    return tuple(measure(lengths) if lengths else 0 for lengths in packing.lengths)


def _starts(packing: Packing) -> Lengths:
    return tuple(tuple(accumulate((0, *each)))[: len(each)] for each in packing.lengths)


def _within(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
    """Whether the values of each call are below a size."""
    pairs = zip(tensor.values, sizes, strict=False)
    return bool(tensor.values) and all(max(each, default=-1) < size for each, size in pairs)
