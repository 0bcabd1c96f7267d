"""Recognizes packed dimensions, the roles of integer tensors, and problem families.

It reads an `Interface` and calls nothing. Its evidence, in this order: how kernels use values, the
values of a recorded call, and names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from tlmatrix.commands.new.interface import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.commands.new.interface import Interface, Size

_OFFSETS = re.compile(r"cu_?seq|cu_?len|offset|indptr|row_?ptr|bounds", re.IGNORECASE)
_IDS = re.compile(
    r"(seq|segment|batch|expert|group|sequence)\w*_?(id|ids|idx|index)$|_ids?$", re.IGNORECASE
)
_POSITIONS = re.compile(r"pos(ition)?(_?ids?|s)?$", re.IGNORECASE)
_PADDED = re.compile(r"pad", re.IGNORECASE)
_LONGEST = re.compile(r"max_?(seq|len|new|q|k)|longest", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Packing:
    """A packed dimension: rows of several sequences one after another.

    Attributes:
        axis: the axis of the sequence lengths.
        side: `q` or `k` if the axis has two sides.
        rows: the symbol of the total number of rows; None if only lengths are known.
        tile: the number of rows that a kernel processes per step.
        lengths: the lengths in a recorded call.
    """

    axis: str
    side: str | None = None
    rows: str | None = None
    tile: int | None = None
    lengths: tuple[int, ...] = ()

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
        family: the built-in problem that fits, `attention` or `gemm`.
    """

    packings: tuple[Packing, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    dims: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    family: str | None = None


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
        self.sizes = dict(interface.sizes)
        self.packings: list[Packing] = []
        self.roles: dict[str, Role] = {}
        self.dims: dict[str, str] = {}
        self.numbers: dict[str, str] = {}

    def found(self) -> Recognition:
        """Recognize everything, beginning with the packings that the rest refers to."""
        self._by_offsets()
        self._by_starts_and_lengths()
        self._by_ids()
        self._lengths_beside()
        self._ids_and_positions()
        self._tables()
        self._indices()
        self._longest_dims()
        self._numbers()
        family = self._family()
        return Recognition(tuple(self.packings), self.roles, self.dims, self.numbers, family)

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

    def _pack(
        self, axis: str, side: str | None, rows: str | None, lengths: tuple[int, ...]
    ) -> Packing:
        tiles = [
            self.interface.accesses.tile(name, dim)
            for name, shape in self.shapes.items()
            for dim, size in enumerate(shape)
            if size == rows
        ]
        tile = max((size for size in tiles if size is not None), default=None)
        packing = Packing(axis, side, rows, tile, lengths)
        self.packings.append(packing)
        if rows is not None:
            self.dims[rows] = f"sum({packing.expression})"
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
        used = self.interface.accesses
        if tensor.values is not None:
            ordered = all(a <= b for a, b in pairwise(tensor.values))
            last = tensor.values[-1] if tensor.values else 0
            fits = any(last in other.sizes for other in self.given if other is not tensor)
            return ordered and fits and last > 1 and tensor.values[0] == 0
        acts = name in used.bounds or any(each.index == name for each in used.selections)
        if name in used.consecutive:
            return acts
        return bool(_OFFSETS.search(name)) and str(tensor.shape[0]).endswith("+ 1")

    def _rows_of(self, name: str) -> str | None:
        """The symbol of the rows that offsets index."""
        used = self.interface.accesses
        chosen = [
            self.shapes[each.tensor][each.dim]
            for each in used.selections
            if each.index == name and each.kind == "start" and each.tensor in self.shapes
        ]
        tensor = self.integers[name]
        if tensor.values is not None:
            total = tensor.values[-1]
            chosen = [size for size in chosen if self.sizes.get(str(size)) == total]
            chosen = chosen or [
                shape
                for other in self.given
                if other is not tensor
                for shape, size in zip(other.shape, other.sizes, strict=True)
                if size == total
            ]
        symbols = [size for size in chosen if isinstance(size, str) and size.isidentifier()]
        return max(sorted(set(symbols)), key=symbols.count, default=None)

    def _lengths(self, name: str) -> tuple[int, ...]:
        values = self.integers[name].values
        return () if values is None else tuple(b - a for a, b in pairwise(values))

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
        used = self.interface.accesses
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
            lengths = self.integers[counts[0]].values or ()
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

    def _selects_as(self, name: str, kind: str) -> bool:
        selections = self.interface.accesses.selections
        return any(each.index == name and each.kind == kind for each in selections)

    def _selects(self, name: str, symbol: str | None) -> bool:
        return any(
            each.index == name and self.shapes.get(each.tensor, ())[each.dim : each.dim + 1]
            == (symbol,)
            for each in self.interface.accesses.selections
        )  # fmt: skip

    def _by_ids(self) -> None:
        """Recognize packings without offsets or starts, from sorted sequence ids of rows."""
        for name, tensor in self.integers.items():
            if self.packings or not _IDS.search(name) or len(tensor.shape) != 1:
                continue
            (rows,) = tensor.shape
            others = [each for each in self.given if each is not tensor and rows in each.shape]
            values = tensor.values
            ordered = values is None or (
                all(a <= b for a, b in pairwise(values)) and len(set(values)) < len(values)
            )
            if isinstance(rows, str) and rows.isidentifier() and others and ordered:
                lengths: tuple[int, ...] = ()
                if values:
                    lengths = tuple(values.count(k) for k in range(max(values) + 1))
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
            if packing is None and tensor.values is not None:
                packing = self._other_side(tensor.values)
            elif packing is None:
                packing = self.packings[0]
            if packing is None:
                continue
            self._batch_is(size, packing.axis)
            starts = tuple(accumulate((0, *packing.lengths)))[: len(packing.lengths)]
            is_start = self._selects_as(name, "start") and tensor.values in (None, starts)
            self.roles[name] = Role("starts_of" if is_start else "lengths_of", packing.expression)

    def _counts_sequences(self, size: Size, tensor: Tensor) -> bool:
        count = f"len({self.packings[0].axis})"
        if substitute(size, self.dims) == count:
            return True
        lengths = self.packings[0].lengths
        return bool(lengths) and tensor.sizes == (len(lengths),)

    def _of_lengths(self, tensor: Tensor) -> Packing | None:
        for packing in self.packings:
            starts = tuple(accumulate((0, *packing.lengths)))[: len(packing.lengths)]
            if tensor.values is not None and tensor.values in (packing.lengths, starts):
                return packing
        return None

    def _other_side(self, values: tuple[int, ...]) -> Packing | None:
        """Recognize lengths of a second side, such as cached keys."""
        if len(self.packings) != 1 or min(values, default=0) < 0:
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
            rows = [(b, k) for b, length in enumerate(packing.lengths) for k in range(length)]
            ids, positions = tuple(b for b, _ in rows), tuple(k for _, k in rows)
            if tensor.values is not None:
                is_id, is_position = tensor.values == ids, tensor.values == positions
            else:
                is_id, is_position = bool(_IDS.search(name)), bool(_POSITIONS.search(name))
            if is_position:
                self.roles[name] = Role("positions_of", packing.expression)
                for each in self.interface.accesses.selections:
                    if each.index == name and each.tensor in self.shapes:
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
            for each in self.interface.accesses.selections
            if each.index == name and each.dim == 0 and len(self.shapes.get(each.tensor, ())) > 2
        ]
        if used or table.values is None:
            return sorted(set(used))
        largest = max(table.values, default=-1)
        return [
            each.name
            for each in self.given
            if len(each.sizes) > 2 and each.sizes[0] > largest and not each.integer
        ]

    def _indices(self) -> None:
        """Recognize the remaining integers as indices into a dimension of an input."""
        for name in self.integers:
            if name in self.roles:
                continue
            for each in sorted(self.interface.accesses.selections, key=str):
                if each.index != name or each.kind != "index" or each.tensor not in self.shapes:
                    continue
                size = substitute(self.shapes[each.tensor][each.dim], self.dims)
                least = "-1" if self._ignores(name) else "0"
                self.roles[name] = Role("between", (least, f"{size} - 1"))
                break

    def _ignores(self, name: str) -> bool:
        """Whether a negative number marks an ignored index."""
        values = self.integers[name].values or ()
        named = any(each.name == "ignore_index" for each in self.interface.arguments)
        return named or min(values, default=0) < 0

    def _longest_dims(self) -> None:
        """Recognize dimensions with the length of the longest sequence."""
        for each in sorted(self.interface.accesses.selections, key=str):
            role = self.roles.get(each.index)
            if each.kind != "within" or role is None or each.tensor not in self.shapes:
                continue
            for packing in self.packings:
                if role.of == packing.expression:
                    self._longest(self.shapes[each.tensor][each.dim], packing)

    def _longest(self, size: Size, packing: Packing) -> None:
        if isinstance(size, str) and size.isidentifier() and size not in self.dims:
            longest = max(packing.lengths, default=0)
            if not packing.lengths or self.sizes.get(size, longest) == longest:
                self.dims[size] = f"max({packing.expression})"

    # Numbers -------------------------------------------------------------------------------

    def _numbers(self) -> None:
        for argument in (*self.interface.arguments, *self.interface.construct):
            name, value = argument.name, argument.value
            if name in self.dims:
                self.numbers[name] = self.dims[name]
                continue
            if argument.kind != "size":
                continue
            found = self._recorded_number(name, value)
            if found is not None:
                self.numbers[name] = found
        for each in self.interface.parameters:
            if not isinstance(each, Tensor) and each.dtype.startswith("int"):
                packing = self._longest_of(each.name)
                if packing is not None:
                    self.numbers[each.name] = f"max({packing.expression})"

    def _longest_of(self, name: str) -> Packing | None:
        if not self.packings or not _LONGEST.search(name):
            return None
        for packing in self.packings:
            if packing.side is not None and name.endswith(packing.side):
                return packing
        return self.packings[0]

    def _recorded_number(self, name: str, value: object) -> str | None:
        packing = self._longest_of(name)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        for each in self.packings:
            if each.lengths and value == max(each.lengths) and name not in self.sizes:
                return f"max({each.expression})"
            if each.lengths and value == sum(each.lengths):
                return f"sum({each.expression})"
        if packing is not None:
            return f"max({packing.expression})"
        for each in self.packings:
            if each.lengths and value == len(each.lengths) and _counts(name):
                return f"len({each.axis})"
        equal = [symbol for symbol, size in self.sizes.items() if size == value > 2]
        if len(equal) == 1 and equal[0] not in self.dims and equal[0] != name:
            return equal[0]
        return None

    # Families ------------------------------------------------------------------------------

    def _family(self) -> str | None:
        names = {each.name.lower() for each in self.given}
        if {"q", "k", "v"} <= names:
            return "attention"
        matrices = [each for each in self.interface.inputs if len(each.shape) == 2]
        products = self.interface.accesses.products
        plain = len(self.interface.inputs) == len(matrices) == 2 and not self.packings
        outputs = self.interface.outputs
        named = {"a", "b"} == {each.name.lower() for each in matrices}
        product = (
            products == {(matrices[0].name, matrices[1].name)} if len(matrices) == 2 else False
        )
        if plain and (product or named) and len(outputs) == 1 and len(outputs[0].shape) == 2:
            return "gemm"
        return None


def _counts(name: str) -> bool:
    return bool(re.search(r"num|n_|batch|seqs|count|experts", name, re.IGNORECASE))
