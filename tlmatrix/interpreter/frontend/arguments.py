"""Arguments of a call as generated programs take them: NumPy arrays and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime

from .layouts import positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.interpreter.program import Parameter, Program

__all__ = ["Arguments"]

_CODECS = {codec.dtype: codec for codec in runtime.CODECS.values()}

Offsets = dict[tuple[Any, ...], np.ndarray[Any, Any]]
"""Where the elements of a buffer with an annotated layout lie, by its name, shape and symbols."""


class Arguments:
    """The arguments of one launch.

    Tensors are views. Of a tensor whose layout is annotated the program gets a copy in logical
    order, which `write_back` copies back.

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
        self._moved: list[tuple[Any, Any, Any]] = []
        self.values = [
            self._argument(p, v) for p, v in zip(program.parameters, values, strict=True)
        ]
        if wide:
            given = zip(program.parameters, values, self.values, strict=True)
            self.values = [_wide(p, v, a) for p, v, a in given]

    @property
    def moved(self) -> bool:
        """Whether a tensor was copied to its logical order."""
        return bool(self._moved)

    def write_back(self) -> None:
        """Copy what the program wrote to tensors with an annotated layout."""
        for flat, where, logical in self._moved:
            flat[where] = logical

    def _argument(self, p: Parameter, value: Any) -> Any:
        if p.shape is None:
            return _number(p, value)
        if value is None:
            return None
        tensor = value.detach()
        codec = _CODECS.get(tensor.dtype)
        array = codec.view(tensor) if codec is not None else tensor.numpy()
        if p.name not in self._program.layouts:
            return array
        flat = array.reshape(-1)
        where = self._where(p.name, array.shape)
        logical = flat[where]
        self._moved.append((flat, where, logical))
        return logical

    def _where(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        key = (name, shape, *self._symbols.values())
        found = self._offsets.get(key)
        if found is None:
            layout = self._program.layouts[name]
            together = self._program.together.get(name, 1)
            found = positions(layout, shape, name, self._symbols, together)
            self._offsets[key] = found
        return found


def _number(p: Parameter, value: Any) -> Any:
    if p.dtype.startswith(("int", "uint")):
        return int(value)
    if p.dtype == "bool":
        return bool(value)
    codec = _CODECS.get(TILE_DTYPES[p.dtype].torch)
    if codec is not None:
        return codec.round(float(value))
    return np.float64(value) if p.dtype == "float64" else np.float32(value)


def _wide(p: Parameter, value: Any, argument: Any) -> Any:
    """A float argument as float64; arrays are new."""
    if argument is None or not p.dtype.startswith(("float", "bfloat")):
        return argument
    if p.shape is None:
        return np.float64(value)
    codec = _CODECS.get(TILE_DTYPES[p.dtype].torch)
    array = argument if codec is None else codec.widen(np.ascontiguousarray(argument))
    return np.array(array, np.float64)
