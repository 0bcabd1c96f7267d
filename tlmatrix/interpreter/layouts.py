"""Global buffers whose elements an annotated layout moves: logical copies of physical memory.

A kernel that annotates a layout on a global buffer indexes it logically and TileLang places
each element elsewhere. The interpreter honours that physically: it reads the buffer through the
layout before a launch and writes it back through it after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InterpreterError, Unsupported
from .indexing import ARITHMETIC, BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LayoutError", "evaluate", "positions"]


class LayoutError(InterpreterError):
    """A layout places elements outside what is allocated; `buffer` names whose."""

    def __init__(self, message: str, buffer: str) -> None:
        super().__init__(message)
        self.buffer = buffer


def evaluate(node: Any, variables: Mapping[Any, Any]) -> Any:
    """The values of an index expression, of arrays of values of its variables.

    Args:
        node: the expression.
        variables: arrays by variable, or by name for those that go by their names.

    Raises:
        Unsupported: for a variable that has no value, and for what layouts do not contain.
    """
    kind = type(node).__name__
    if kind == "IntImm":
        return int(node.value)
    if kind in ("Var", "SizeVar"):
        if node in variables:
            return variables[node]
        # A symbolic dimension, by the name that the kernel's parameters gave it.
        if str(node.name) not in variables:
            raise Unsupported(
                f"the interpreter does not model a layout over the symbolic dimension {node.name}, "
                "which no parameter binds"
            )
        return variables[str(node.name)]
    if kind in ARITHMETIC:
        return ARITHMETIC[kind](evaluate(node.a, variables), evaluate(node.b, variables))
    if kind == "Cast":
        return evaluate(node.value, variables)
    name = str(getattr(getattr(node, "op", None), "name", kind))
    if name in BITS:
        return BITS[name](*(evaluate(a, variables) for a in node.args))
    raise Unsupported(f"the interpreter does not model {name} in a layout")


def positions(
    layout: Any, shape: tuple[int, ...], name: str, symbols: Mapping[str, int], together: int = 1
) -> np.ndarray[Any, Any]:
    """Where each logical element lies: flat offsets, an array of `shape`.

    Args:
        layout: TileLang's layout.
        shape: of the buffer.
        name: of the buffer, for messages.
        symbols: the values of symbolic dimensions.
        together: how many elements of a row vector atomics take for neighbours in memory.

    Raises:
        LayoutError: if the layout needs more memory than the buffer has, or places elements apart
            that a vector atomic would find together.
    """
    grid = np.indices(shape, sparse=True)
    variables: dict[Any, Any] = {**symbols}
    variables.update(zip(layout.get_forward_vars(), grid, strict=True))
    index = [evaluate(e, variables) for e in layout.get_forward_index()]
    extents = [int(evaluate(e, symbols)) for e in layout.get_output_shape()]
    offset: Any = 0
    for i, n in zip(index, extents, strict=True):
        offset = offset * n + i
    offset = np.broadcast_to(offset, shape)
    size = int(np.prod(shape))
    if size and int(offset.max()) >= size:
        raise LayoutError(
            f"the layout annotated on {name} of shape {shape} places an element at "
            f"{int(offset.max())}, but only {size} elements are allocated: "
            "pad the tensor to the layout's tile",
            name,
        )
    apart = _first_apart(offset, together)
    if apart is not None:
        raise LayoutError(
            f"an atomic adds to {together} elements side by side from {name}"
            f"[{', '.join(map(str, apart))}] on, but the layout annotated on {name} places them "
            "apart: on a GPU others would be added to",
            name,
        )
    found: np.ndarray[Any, Any] = offset
    return found


def _first_apart(offset: np.ndarray[Any, Any], together: int) -> tuple[int, ...] | None:
    """Where the first group of elements of a row begins that are no neighbours, or None."""
    if together == 1 or not offset.size:
        return None
    *rows, columns = offset.shape
    groups = offset[..., : columns // together * together].reshape(*rows, -1, together)
    wrong = np.argwhere((groups != groups[..., :1] + np.arange(together)).any(-1))
    if not len(wrong):
        return None
    *row, group = wrong[0].tolist()
    return (*row, group * together)
