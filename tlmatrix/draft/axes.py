"""Axes of a draft: which there are, their values, and ranges for generated cases."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.interface import Number
from tlmatrix.draft.sizes import BATCH, COUNT, WORD
from tlmatrix.draft.text import constant
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.lint.problem import RUN_NAMES
from tlmatrix.spec.lint.semantics import RESERVED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tlmatrix.draft.interface import Argument, Interface, Tensor
    from tlmatrix.draft.roles import Packing, Recognition

Values = tuple[Any, ...]

_VALUES = ("normal", "large", "zero_rows", "rising", "shifted")
_WITHOUT_TIES = ("normal", "large")
_MOST_ELEMENTS = 1 << 22
"""Most elements of a tensor of a draft: a case takes seconds."""
_TILE = 64
"""The size of a tile if it is unknown."""
_TILES = 8
"""How many tiles a size has at most that is large alone."""
_MOST_ALONE = 8192
"""The largest of such sizes, which the calls of a model may have."""
_EXAMPLES = {"quick": 5, "nightly": 200}


def sizes(name: str, *, tile: int | None, recorded: Sequence[int]) -> list[int]:
    """Sizes of a dimension: two tiles and a tail of each loop over it, and the recorded ones.

    Sizes of several calls may share a factor of 8 or more: then multiples of it, and one other.

    Args:
        name: its name in the code.
        tile: the size of a step over it.
        recorded: its size in recorded calls.
    """
    small = [size for size in sorted({*recorded}) if size <= 512][:3]
    if re.search(r"experts?$", name, re.IGNORECASE):
        return sorted({*small, max(2, small[0] - 2)}) if small else [4, 6]
    if re.search(r"width|taps|kernel_size", name, re.IGNORECASE):
        return [1, 2, 4]
    if COUNT.search(name) and all(size <= 8 for size in recorded):
        return sorted({1, *(small or [3])}) if set(small) - {1} or not small else [1, 3]
    if BATCH.search(name) and recorded and tile is None:
        return [1, 3]
    edge = tile or _TILE
    if step := shared_factor(recorded):
        whole = [tile, 2 * tile] if tile and tile % step == 0 else []
        return sorted({step, step + 1, *whole, *small})
    if small and tile is None:
        return sorted({1, *small, small[0] + 1})
    # The last size takes several tiles, and several iterations of a persistent block.
    near = (1, edge - 1, edge, edge + 1, 2 * edge + 1)
    return list(dict.fromkeys(each for each in near if each > 0))


def shared_factor(recorded: Sequence[int]) -> int:
    """The factor that all sizes of several calls have; 0 if it is small."""
    step = math.gcd(*recorded)
    return step if len({*recorded}) > 1 and step >= 8 else 0


def multiple_of(recorded: Sequence[int]) -> int:
    """The factor that all sizes have, of one size a power of two; 0 if it may be so by chance."""
    own = math.gcd(128, *recorded)
    alone = len({*recorded}) == 1 and recorded[0] >= _TILE and own >= 16
    return shared_factor(recorded) or (own if alone else 0)


def lengths(packings: Sequence[Packing]) -> list[Any]:
    """Values of a packed axis, on both sides of the edges of tiles."""
    tile = max((each.tile for each in packings if each.tile), default=0) or _TILE // 2
    first = [[tile], [1, tile + 1, 3], [0, 2 * tile + 1, 1, 0, tile - 1]]
    if [each.side for each in packings] == [None]:
        return first
    if packings[1].rows is None:
        # Lengths of a second side, such as cached keys, which include the new rows.
        more = [[5], [0, tile, 16], [7, 1, 0, 3, 30]]
    else:
        more = [[-5 if tile > 5 else 0], [6, 0, -3], [9, -tile, 0, 4, 2]]
    return [
        {"q": q, "k": [a + b for a, b in zip(q, add, strict=True)]}
        for q, add in zip(first, more, strict=True)
    ]


def fuzz_ranges(axes: Mapping[str, Values], alone: Mapping[str, int]) -> dict[str, Any]:
    """The fuzz section of axes that take any size up to their largest, or one up to `alone`."""
    ranges: dict[str, Any] = {}
    for name, values in axes.items():
        most = max(values) * 3 // 2 + 1
        ranges[name] = f"1..{most}"
        if alone.get(name, 0) > most:
            ranges[name] = {"range": ranges[name], "alone": alone[name]}
    return {"axes": ranges, "examples": _EXAMPLES} if ranges else {}


def number_of(scalar: Number) -> float:
    """A value of a scalar argument of a kernel."""
    return 0.5 if "float" in scalar.dtype else 1


class AxesOfDraft:
    """The axes of a declared problem.

    Args:
        interface: of the code under test.
        recognition: what is known of its integer tensors.
        inputs: the tensors that the problem makes.
        numbers: expressions for arguments that are no axes.
        takes: the parameters of the reference.
        compared: whether each recorded call was compared with it; empty if that is unknown.

    Attributes:
        axes: the values of each.
        remarks: comments, by axis.
        multiples: factors that all recorded sizes of an axis have.
    """

    def __init__(
        self,
        interface: Interface,
        recognition: Recognition,
        inputs: Sequence[Tensor],
        numbers: Mapping[str, Any],
        takes: Collection[str],
        compared: Sequence[bool] = (),
    ) -> None:
        self._interface = interface
        self._recognition = recognition
        self._inputs = inputs
        self._numbers = numbers
        self._takes = takes
        self._compared = compared
        self._arguments = {e.name: e for e in (*interface.arguments, *interface.construct)}
        self._tensors = (*interface.tensors, *interface.results)
        self._ranges: set[str] = set()
        self._alone: dict[str, int] = {}
        self.remarks: dict[str, str] = {}
        self.multiples: dict[str, int] = {}
        self.axes: dict[str, Values] = dict(self._found())
        self._make_affordable()

    def _found(self) -> Iterator[tuple[str, Values]]:
        dimensions = dict(self._dimensions())
        interface = self._interface
        followed = {each.dtype_of for each in self._tensors}
        for name in sorted(filter(None, followed - self._arguments.keys())):
            yield name, interface.dtypes
        for item in self._arguments.values():
            used = item.name in dimensions or item.name in followed
            if item.default and item in interface.construct and not used:
                continue
            values = self._argument_values(item, dimensions, followed)
            if values:
                yield item.name, values
        for name, places in dimensions.items():
            if name not in self._arguments:
                yield name, self._sizes(name, places)
        for packing in self._recognition.packings:
            if packing.side in (None, "q"):
                sides = [e for e in self._recognition.packings if e.axis == packing.axis]
                yield packing.axis, tuple(lengths(sides))
        for scalar in interface.parameters:
            if isinstance(scalar, Number) and scalar.name not in self._numbers:
                yield scalar.name, (number_of(scalar),)
                self.remarks[scalar.name] = "a scalar argument of the kernel"
        taken = {*self._arguments, *dimensions, *(item.name for item in interface.parameters)}
        floats = any("float" in item.dtype and item.shape for item in interface.tensors)
        if floats and "values" not in taken:
            whole = any(each.integer for each in interface.outputs)
            yield "values", _WITHOUT_TIES if whole else _VALUES

    def _dimensions(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """The symbols and arguments that are dimensions of tensors, and where they occur."""
        places: dict[str, list[tuple[str, int]]] = {}
        for tensor in self._tensors:
            role = self._recognition.roles.get(tensor.name)
            if role is not None and role.key != "between":
                continue
            for dim, size in enumerate(tensor.shape):
                for name in WORD.findall(str(size)):
                    if name not in self._recognition.dims and name != "ceildiv":
                        places.setdefault(name, []).append((tensor.name, dim))
        for role in self._recognition.roles.values():
            if isinstance(role.page_size, str) and role.page_size not in self._recognition.dims:
                places.setdefault(role.page_size, [])
        yield from places.items()

    def _argument_values(
        self, item: Argument, dimensions: Mapping[str, Any], followed: set[str | None]
    ) -> Values:
        name, value = item.name, item.value
        reserved = name in RESERVED or name in RUN_NAMES
        if name in self._numbers or isinstance(value, list) or reserved:
            return ()
        factory = self._interface.factory
        taken = name in self._takes
        if not taken and item.kind != "dtype" and len(self._compared) == len(item.values):
            # What the reference does not take is as in the calls that it was compared with.
            values = tuple(v for v, own in zip(item.values, self._compared, strict=True) if own)
            item = replace(item, values=values)
            value = next(iter(values), value)
        seen = tuple(dict.fromkeys(v if isinstance(v, str) else constant(v) for v in item.values))
        if item.kind == "dtype":
            main = self._interface.dtypes
            of_inputs = factory or name in {t.dtype_of for t in self._inputs}
            if name in followed:
                return (main if of_inputs and {*main} <= {*seen} else seen) or (value,)
            return () if factory or item.default else seen
        if name in dimensions:
            return self._sizes(name, dimensions[name])
        if item.kind == "flag":
            other = [not value] if taken else []
            return tuple(sorted({*seen, constant(value), *other}, key=str))
        if name == "ignore_index":
            return (-1,)
        if item.kind in ("tile", "setting") and factory:
            return ()
        if len(seen) > 1:
            return seen
        if item.kind == "size" and (taken or not factory or not item.default):
            small = isinstance(value, int) and 1 < value <= 8 and taken
            return (1, value) if small else (value,)
        wanted = (taken or not factory) and value is not None
        return (value,) if wanted and (taken or not item.default) else ()

    def _sizes(self, name: str, places: list[tuple[str, int]]) -> Values:
        interface = self._interface
        recorded = interface.symbols.get(name, ())
        argument = self._arguments.get(name)
        traced = argument.value if argument is not None and interface.factory else None
        traced = None if recorded else traced
        shapes = {each.name: each.shape for each in self._tensors}
        alone = [(tensor, dim) for tensor, dim in places if shapes[tensor][dim] == name]
        steps = [interface.uses.tile(tensor, dim) for tensor, dim in alone or places]
        # A step of the whole dimension is not a tile.
        known = [step for step in steps if step is not None and step not in (traced, *recorded)]
        tiles = [each for each in interface.arguments if each.kind == "tile"]
        own = [each.value for each in tiles if each.name.lower().endswith(name.lower())]
        tile = max(known, default=None) or next(iter(own), None)
        if tile is None and traced is not None:
            tile = max((each.value for each in tiles), default=None)
        found = sizes(name, tile=tile, recorded=recorded)
        parts = {
            int(by)
            for each in self._tensors
            for by in re.findall(rf"\b{name} // (\d+)", " ".join(map(str, each.shape)))
        }
        if parts:  # multiples of what it is divided by
            whole = math.lcm(*parts)
            found = sorted({-(-size // whole) * whole for size in found})
        elif found == [1, 3] and any(name == total for total, _ in quotients(self._tensors)):
            found.append(6)  # a quotient of two
        if step := multiple_of(recorded):
            self.multiples[name] = step
        if not parts:
            self._ranges.add(name)
            # Larger ones were called with, or take more iterations of a loop over tiles.
            most = max((*recorded, _TILES * max(known, default=0)))
            self._alone[name] = min(most, _MOST_ALONE)
        return tuple(found)

    def _make_affordable(self) -> None:
        """Halve the largest sizes of tensors of more than `_MOST_ELEMENTS`."""
        for tensor in self._inputs:
            size = " * ".join(f"({each})" for each in tensor.shape)
            named = dict.fromkeys(WORD.findall(size), 1)
            own = [n for n in named if all(type(v) is int for v in self.axes.get(n, ("",)))]
            while own:
                most = {name: max(self.axes[name]) for name in own}
                largest = max(own, key=lambda name: most[name])
                try:
                    fits = Expression(size).evaluate(named | most) <= _MOST_ELEMENTS
                except ExpressionError:  # of lengths
                    break
                if fits or most[largest] == 1:
                    break
                half = (v if v < most[largest] else v // 2 for v in self.axes[largest])
                self.axes[largest] = tuple(dict.fromkeys(half))

    def fuzz(self) -> dict[str, Any]:
        """The fuzz section."""
        by_axis: dict[str, list[Packing]] = {}
        for packing in self._recognition.packings:
            by_axis.setdefault(packing.axis, []).append(packing)
        if not by_axis:
            ranges = {name: v for name, v in self.axes.items() if name in self._ranges}
            return fuzz_ranges(ranges, self._alone)
        found = {}
        for axis, sides in by_axis.items():
            tile = max((each.tile for each in sides if each.tile), default=0)
            drawn: dict[str, Any] = {"sequences": "1..6", "length": f"0..{2 * (tile or 24) + 16}"}
            drawn |= {"around": [tile]} if tile else {}
            if len(sides) == 2:
                drawn["k"] = "longer" if sides[1].rows is None else "independent"
            found[axis] = drawn
        others = {axis: drawn for axis, drawn in found.items() if axis != "seqlens"}
        own = {"seqlens": found["seqlens"]} if "seqlens" in found else {}
        return own | ({"axes": others} if others else {}) | {"examples": _EXAMPLES}


def quotients(tensors: Sequence[Tensor]) -> set[tuple[str, str]]:
    """Two arguments whose quotient is a dimension, such as heads and groups."""
    every = (str(size) for tensor in tensors for size in tensor.shape)
    found = (re.fullmatch(r"([A-Za-z_]\w*) // ([A-Za-z_]\w*)", size) for size in every)
    return {(each[1], each[2]) for each in found if each is not None}
