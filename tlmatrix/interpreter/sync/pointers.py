"""Pointers to elements of buffers, as `T.address_of` gives them to modelled functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tlmatrix.interpreter.errors import InterpreterError

from . import context


@dataclass(frozen=True)
class Pointer:
    """The address of an element of a buffer.

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
