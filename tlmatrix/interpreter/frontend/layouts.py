"""Global buffers whose elements an annotated layout moves: logical copies of physical memory.

A kernel that annotates a layout on a global buffer indexes it logically and TileLang places
each element elsewhere. The interpreter honours that physically: it reads the buffer through the
layout before a launch and writes it back through it after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.evaluate import evaluate
from tlmatrix.interpreter.analysis.thread_order import placeholders
from tlmatrix.interpreter.errors import InterpreterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.program import GlobalLayout

__all__ = ["LayoutError", "positions"]


class LayoutError(InterpreterError):
    """A layout places elements outside what is allocated; `buffer` names whose."""

    def __init__(self, message: str, buffer: str) -> None:
        super().__init__(message)
        self.buffer = buffer


def positions(
    layout: GlobalLayout,
    shape: tuple[int, ...],
    name: str,
    symbols: Mapping[str, int],
    together: int = 1,
) -> np.ndarray[Any, Any]:
    """Where each logical element lies: flat offsets, an array of `shape`.

    Args:
        layout: the layout.
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
    variables.update(zip(placeholders(layout.layout), grid, strict=True))
    index = [evaluate(e, variables) for e in layout.layout.index]
    extents = [int(evaluate(e, symbols)) for e in layout.shape]
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
