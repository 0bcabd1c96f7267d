"""Arguments of a launch as generated programs take them: NumPy arrays and numbers.

A kernel that annotates a layout on a global buffer indexes it logically, and TileLang places each
element elsewhere. Its program gets a copy of the buffer in logical order, which is written back.
A tensor with two elements in a byte is copied too, to a byte for each element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime
from tlmatrix.interpreter.analysis.evaluate import evaluate
from tlmatrix.interpreter.analysis.thread_order import placeholders
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.runtime.codecs import pack_into, unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.interpreter.program import GlobalLayout, Parameter, Program

    Array = np.ndarray[Any, Any]

Offsets = dict[tuple[Any, ...], "Array"]
"""Where the elements of a buffer with an annotated layout lie, by its name, shape and symbols."""


class LayoutError(InterpreterError):
    """A layout places elements outside of its buffer, or apart that belong together."""

    def __init__(self, message: str, buffer: str) -> None:
        super().__init__(message)
        self.buffer = buffer


class Arguments:
    """The arguments of one launch; tensors are views, but for those with an annotated layout.

    Attributes:
        values: what the program takes, in the order of its parameters.
    """

    def __init__(
        self,
        program: Program,
        values: Sequence[Any],
        symbols: Mapping[str, int],
        offsets: Offsets,
        *,
        wide: bool = False,
    ) -> None:
        self._program = program
        self._symbols = symbols
        self._offsets = offsets
        self._moved: list[tuple[Array, Array, Array]] = []
        self._packed: list[tuple[Array, Array]] = []
        given = list(zip(program.parameters, values, strict=True))
        self.values = [self._argument(p, value) for p, value in given]
        if wide:
            self.values = [
                _wide(p, value, argument)
                for (p, value), argument in zip(given, self.values, strict=True)
            ]

    @property
    def moved(self) -> bool:
        """Whether a tensor was copied, to its logical order or to an element a byte."""
        return bool(self._moved or self._packed)

    def write_back(self) -> None:
        """Copy what the program wrote to tensors with an annotated layout or packed elements."""
        for flat, where, logical in self._moved:
            flat[where] = logical
        for packed, elements in self._packed:
            pack_into(packed, elements)

    def _argument(self, p: Parameter, value: Any) -> Any:
        if p.shape is None:
            return _number(p, value)
        if value is None:
            return None
        tensor = value.detach() if value.requires_grad else value
        dtype = TILE_DTYPES[_held_as(p, value)]
        if dtype.packed_as:
            packed = tensor.view(torch.uint8).numpy()
            array = unpacked(packed, dtype)
            self._packed.append((packed, array))
        else:
            codec = runtime.CODECS.get(dtype.codec or "")
            array = codec.view(tensor) if codec is not None else tensor.numpy()
        if p.name not in self._program.layouts:
            return array
        flat = array.reshape(-1)
        key = (p.name, array.shape, *self._symbols.values())
        where = self._offsets.get(key)
        if where is None:
            layout = self._program.layouts[p.name]
            where = _offsets_of(layout, array.shape, p.name, self._symbols)
            _check_together(where, self._program.together.get(p.name, 1), p.name)
            self._offsets[key] = where
        logical = flat[where]
        self._moved.append((flat, where, logical))
        return logical


def _number(p: Parameter, value: Any) -> Any:
    if p.dtype.startswith(("int", "uint")):
        return int(value)
    if p.dtype == "bool":
        return bool(value)
    codec = runtime.CODECS.get(TILE_DTYPES[p.dtype].codec or "")
    if codec is not None:
        return codec.round(float(value))
    return np.float64(value) if p.dtype == "float64" else np.float32(value)


def _held_as(p: Parameter, value: torch.Tensor) -> str:
    """The dtype of a tensor; a wide program may declare float64 for any float."""
    return str(value.dtype).removeprefix("torch.") if p.dtype == "float64" else p.dtype


def _wide(p: Parameter, value: Any, argument: Any) -> Any:
    """A float argument as float64; arrays are new."""
    if argument is None or not p.dtype.startswith(("float", "bfloat")):
        return argument
    if p.shape is None:
        return np.float64(value)
    codec = runtime.CODECS.get(TILE_DTYPES[_held_as(p, value)].codec or "")
    array = argument if codec is None else codec.widen(np.ascontiguousarray(argument))
    return np.array(array, np.float64)


def _offsets_of(
    layout: GlobalLayout, shape: tuple[int, ...], name: str, symbols: Mapping[str, int]
) -> Array:
    """Where each logical element lies: flat offsets, an array of `shape`.

    Raises:
        LayoutError: if the layout needs more memory than the buffer has.
    """
    grid = np.indices(shape, sparse=True)
    variables: dict[Any, Any] = {**symbols}
    variables.update(zip(placeholders(layout.layout), grid, strict=True))
    offset: Any = 0
    for index, extent in zip(layout.layout.index, layout.shape, strict=True):
        offset = offset * int(evaluate(extent, symbols)) + evaluate(index, variables)
    offset = np.broadcast_to(offset, shape)
    if offset.size and int(offset.max()) >= offset.size:
        raise LayoutError(
            f"the layout annotated on {name} of shape {shape} places an element at "
            f"{int(offset.max())}, but only {offset.size} elements are allocated: "
            "pad the tensor to the layout's tile",
            name,
        )
    found: Array = offset
    return found


def _check_together(offset: Array, together: int, name: str) -> None:
    """Refuse a layout that separates elements of a row which a vector atomic takes for neighbours.

    Raises:
        LayoutError: names the first element of such a group.
    """
    if together == 1 or not offset.size:
        return
    *rows, columns = offset.shape
    groups = offset[..., : columns // together * together].reshape(*rows, -1, together)
    apart = np.argwhere((groups != groups[..., :1] + np.arange(together)).any(-1))
    if len(apart):
        *row, group = apart[0].tolist()
        place = ", ".join(map(str, (*row, group * together)))
        raise LayoutError(
            f"an atomic adds to {together} elements side by side from {name}[{place}] on, but the "
            f"layout annotated on {name} places them apart: on a GPU others would be added to",
            name,
        )
