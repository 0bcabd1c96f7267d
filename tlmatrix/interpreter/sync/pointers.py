"""Pointers to elements of buffers, as `T.address_of` gives them to modelled functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError

from . import context


@dataclass(frozen=True)
class Pointer:
    """The address of an element of a buffer; `pointer[i]` is the element `i` places behind it.

    Attributes:
        array: the buffer, as the kernel sees it.
        index: the element.
        name: the user's name of the buffer.
    """

    array: Any
    index: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        shape = self.array.shape
        for i, n in zip(self.index, shape, strict=True):
            if not 0 <= i < n:
                raise InterpreterError(
                    f"index out of bounds: the address of {self} is taken, but {self.name} has "
                    f"shape {tuple(shape)}{_owner(self.array)}"
                )

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"

    @property
    def address(self) -> int:
        """The address; the same for every view of the buffer."""
        steps = zip(self.index, self.array.strides, strict=True)
        start: int = self.array.__array_interface__["data"][0]
        return start + sum(i * int(s) for i, s in steps)

    def __add__(self, offset: int) -> Pointer:
        """The address of the element `offset` places behind, in C order.

        Raises:
            InterpreterError: if the buffer has no such element.
        """
        shape = self.array.shape
        flat = int(np.ravel_multi_index(self.index, shape)) + int(offset)
        if not 0 <= flat < self.array.size:
            raise InterpreterError(
                f"index out of bounds: {self} + {offset} is outside {self.name}, which has shape "
                f"{tuple(shape)}"
            )
        return Pointer(self.array, tuple(map(int, np.unravel_index(flat, shape))), self.name)

    def __getitem__(self, offset: int) -> Any:
        """The value of the element `offset` places behind."""
        return (self + offset).load()

    def __setitem__(self, offset: int, value: Any) -> None:
        """Store a value in the element `offset` places behind."""
        (self + offset).store(value)

    def load(self) -> Any:
        """The value."""
        return self.array.item(self.index)

    def store(self, value: Any) -> None:
        """Store a value; integers wrap."""
        if self.array.dtype.kind in "iu":
            bits = 8 * self.array.itemsize
            value = int(value) & ((1 << bits) - 1)
            if self.array.dtype.kind == "i" and value >> (bits - 1):
                value -= 1 << bits
        self.array[self.index] = value


@dataclass(frozen=True)
class Pointers:
    """Addresses of elements of a buffer, one for each iteration or thread.

    Attributes:
        array: the buffer.
        index: the elements, as integers or arrays.
        name: the user's name of the buffer.
    """

    array: Any
    index: tuple[Any, ...]
    name: str

    def of(self, lane: tuple[int, ...], shape: tuple[int, ...]) -> Pointer:
        """The pointer of an iteration, of as many as `shape` has."""
        index = tuple(int(np.broadcast_to(i, shape)[lane]) for i in self.index)
        return Pointer(self.array, index, self.name)


def _owner(array: Any) -> str:
    """The symmetric memory that an array is part of, as text."""
    world = context.world()
    if world is None or world.memory is None:
        return ""
    address = array.__array_interface__["data"][0]
    found = world.memory.find(address)
    if found is None:
        return ""
    first = address - found.begin
    return f", bytes {first} to {first + array.nbytes} of {found}, which has {found.size} bytes"
