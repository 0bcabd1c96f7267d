"""Models of the user's own CUDA functions: what `T.call_extern` calls, in Python.

A model is called as the function is: numbers come as Python numbers, `T.address_of(x[i])` as a
`Pointer`. What it returns is the value of the call. A model that has to wait is a generator that
yields `until(condition)`; other blocks, streams and ranks run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import InterpreterError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Pointer", "call_extern", "is_modelled", "model_extern", "modelled", "until"]

_models: dict[str, Callable[..., Any]] = {}


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
        if not all(0 <= i < n for i, n in zip(self.index, shape, strict=True)):
            raise InterpreterError(
                f"index out of bounds: the address of {self} is taken, but {self.name} has shape "
                f"{tuple(shape)}{_owner(self.array)}"
            )

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"

    @property
    def address(self) -> int:
        """Where the element lies; the same for every name of it."""
        steps = zip(self.index, self.array.strides, strict=True)
        start: int = self.array.__array_interface__["data"][0]
        return start + sum(i * int(s) for i, s in steps)

    def load(self) -> Any:
        """The value there."""
        return self.array[self.index].item()

    def store(self, value: Any) -> None:
        """Put a value there; integers wrap."""
        if self.array.dtype.kind in "iu":
            bits = 8 * self.array.itemsize
            value = int(value) & ((1 << bits) - 1)
            if self.array.dtype.kind == "i" and value >> (bits - 1):
                value -= 1 << bits
        self.array[self.index] = value


def _owner(array: Any) -> str:
    """Whose symmetric memory an array is, in words; empty where it is none."""
    from tlmatrix.interpreter.sync import context

    world = context.world()
    if world is None or world.memory is None:
        return ""
    address = array.__array_interface__["data"][0]
    found = world.memory.find(address)
    if found is None:
        return ""
    first = address - found.begin
    return f", bytes {first} to {first + array.nbytes} of {found}, which has {found.size} bytes"


def model_extern(name: str, model: Callable[..., Any]) -> None:
    """Give the interpreter a model of a function that kernels call with `T.call_extern`.

    Args:
        name: the function's name in the CUDA source.
        model: called with the arguments of the call, on behalf of the whole block: numbers, and
            a `Pointer` for `T.address_of`. A generator may yield `until(condition)` to wait.

    Raises:
        TypeError: for a model that cannot be called.
    """
    if not callable(model):
        raise TypeError(f"the model of {name} must be callable, got {type(model).__name__}")
    _models[name] = model


def modelled() -> list[str]:
    """The names of all functions that have a model."""
    return sorted(_models)


def is_modelled(name: str) -> bool:
    """Whether there is a model of a function."""
    return name in _models


def call_extern(name: str, *args: Any) -> Generator[Any, Any, Any]:
    """Call a model; yields what it waits for, returns its value."""
    found = _models[name](*args)
    if isinstance(found, GeneratorType):
        found = yield from found
    return found


def until(condition: Callable[[], bool], what: str = "a condition") -> Any:
    """What a model yields to wait until `condition()` holds; `what` it waits for is reported."""
    from tlmatrix.interpreter.sync.agents import Wait

    return Wait(condition, lambda: f"for {what}")
