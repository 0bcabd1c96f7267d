"""What TileLang's host code refuses to launch, and the order of blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tlmatrix.interpreter.errors import EMPTY_GRID, LaunchError
from tlmatrix.interpreter.sync.settings import block_seed

__all__ = ["GRID_X", "GRID_YZ", "block_order", "check_grid"]

GRID_X = 2**31 - 1
GRID_YZ = 65_535
"""The most blocks along x, and along y or z (CUDA C++ Programming Guide, compute capabilities)."""


def block_order(indices: range) -> Sequence[int]:
    """The indices of blocks in the order of the schedule in force; its seed selects it.

    Seed 0 is ascending order, odd seeds descending, other seeds a random order of their own.
    """
    seed = block_seed()
    if seed % 2:
        return indices[::-1]
    return random.Random(seed).sample(indices, len(indices)) if seed else indices  # noqa: S311


def check_grid(
    kernel: str, x: int, y: int = 1, z: int = 1, cluster: tuple[int, ...] = (1, 1, 1)
) -> None:
    """Check that a grid has blocks, not more than CUDA launches, and whole clusters of them.

    Raises:
        LaunchError: one of its extents is not positive, above 2**31 - 1 (x) or 65535 (y, z), or no
            multiple of the blocks of a cluster along it.
    """
    if min(x, y, z) <= 0:
        raise LaunchError.of(kernel, EMPTY_GRID, f"grid=({x},{y},{z})")
    for axis, extent, most in (("x", x, GRID_X), ("y", y, GRID_YZ), ("z", z, GRID_YZ)):
        if extent > most:
            message = (
                f"kernel {kernel}: grid=({x},{y},{z}) has {extent} blocks along {axis}, and CUDA "
                f"launches at most {most}; make the longest dimension x, the first of T.Kernel"
            )
            raise LaunchError(message)
    for axis, extent, size in zip("xyz", (x, y, z), cluster, strict=True):
        if extent % size:
            message = (
                f"kernel {kernel}: grid=({x},{y},{z}) has {extent} blocks along {axis}, and CUDA "
                f"launches only multiples of the {size} of a cluster; round the grid up, and guard "
                "what the blocks past the end access"
            )
            raise LaunchError(message)
