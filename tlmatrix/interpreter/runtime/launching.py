"""What TileLang's host code refuses to launch, on every CUDA device."""

from __future__ import annotations

from tlmatrix.interpreter.errors import EMPTY_GRID, LaunchError

__all__ = ["check_grid"]


def check_grid(kernel: str, x: int, y: int = 1, z: int = 1) -> None:
    """Check that a grid has blocks.

    Raises:
        LaunchError: one of its extents is not positive.
    """
    if min(x, y, z) <= 0:
        raise LaunchError.of(kernel, EMPTY_GRID, f"grid=({x},{y},{z})")
