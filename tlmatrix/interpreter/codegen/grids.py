"""When a grid starts and when one of its blocks does, for the variants that note it."""

from __future__ import annotations

from typing import Any

from .launching import write_grid_check
from .statements import StatementMixin

__all__ = ["GridMixin"]


class GridMixin(StatementMixin):
    """Calls a hook where a grid starts, and one where a block of it does.

    The loops of a grid are nested, and the first block statement inside the innermost is the
    body of the kernel: it is where all block indices are known.
    """

    def start_grids(self) -> None:
        """Set up, before anything is generated."""
        self._grid_vars: list[Any] = []
        self._entered = False

    def on_grid(self) -> None:
        """The loops of a grid are about to start."""

    def on_block(self, indices: list[Any]) -> None:
        """A block starts; `indices` are the variables of its place in the grid."""

    def _grid(self, node: Any) -> None:
        if not self._grid_vars:
            write_grid_check(self, node)
            self.on_grid()
        self._grid_vars.append(node.loop_var)
        super()._grid(node)
        self._grid_vars.pop()
        self._entered = False

    def _stmt_SBlock(self, node: Any) -> None:
        if self._grid_vars and not self._entered:
            self._entered = True
            self.on_block(self._grid_vars)
        super()._stmt_SBlock(node)
