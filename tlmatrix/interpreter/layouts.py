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

__all__ = ["LayoutError", "positions"]


class LayoutError(InterpreterError):
    """A layout places elements outside what is allocated; `buffer` names whose."""

    def __init__(self, message: str, buffer: str) -> None:
        super().__init__(message)
        self.buffer = buffer


def _evaluate(node: Any, variables: Mapping[Any, Any]) -> Any:
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
        return ARITHMETIC[kind](_evaluate(node.a, variables), _evaluate(node.b, variables))
    if kind == "Cast":
        return _evaluate(node.value, variables)
    name = str(getattr(getattr(node, "op", None), "name", kind))
    if name in BITS:
        return BITS[name](*(_evaluate(a, variables) for a in node.args))
    raise Unsupported(f"the interpreter does not model {name} in a layout")


def positions(
    layout: Any, shape: tuple[int, ...], name: str, symbols: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    """Where each logical element lies: flat offsets, an array of `shape`.

    Args:
        layout: TileLang's layout.
        shape: of the buffer.
        name: of the buffer, for messages.
        symbols: the values of symbolic dimensions.

    Raises:
        LayoutError: if the layout needs more memory than the buffer has.
    """
    grid = np.indices(shape, sparse=True)
    variables: dict[Any, Any] = {**symbols}
    variables.update(zip(layout.get_forward_vars(), grid, strict=True))
    index = [_evaluate(e, variables) for e in layout.get_forward_index()]
    extents = [int(_evaluate(e, symbols)) for e in layout.get_output_shape()]
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
    found: np.ndarray[Any, Any] = offset
    return found
