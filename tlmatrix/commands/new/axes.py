"""Values of axes: sizes and lengths around the edges of tiles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.commands.new.factories import COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.commands.new.recognition import Packing

DEFAULT_TILE = 64
"""The size of a tile if it is unknown."""


def sizes(name: str, *, tile: int | None, recorded: int | None, free: bool) -> list[int]:
    """Sizes of a dimension.

    Args:
        name: its name in the code.
        tile: the size of a step over it.
        recorded: its size in a recorded call.
        free: whether kernels support any size; else only sizes like the recorded one.
    """
    if re.search(r"experts?$", name, re.IGNORECASE):
        return [4, 6]
    if re.search(r"width|taps|kernel_size", name, re.IGNORECASE):
        return [1, 2, 4]
    if COUNT.search(name) and (recorded is None or recorded <= 8):
        return [1, 3] if recorded in (None, 1, 3) else [1, recorded]
    if recorded is not None and (not free or tile is None):
        half = recorded // 2
        if not free:
            return [half, recorded] if recorded % 4 == 0 else [recorded]
        return sorted({1, recorded, recorded + 1})
    edge = tile or DEFAULT_TILE
    # The last size takes several tiles, and several iterations of a persistent block.
    near = (1, edge - 1, edge, edge + 1, 2 * edge + 1)
    return list(dict.fromkeys(each for each in near if each > 0))


def lengths(packings: Sequence[Packing]) -> list[str]:
    """Values of a packed axis as YAML, on both sides of the edges of tiles."""
    tile = max((each.tile for each in packings if each.tile), default=0) or DEFAULT_TILE // 2
    first = [[tile], [1, tile + 1, 3], [0, 2 * tile + 1, 1, 0, tile - 1]]
    sides = [each.side for each in packings]
    if sides == [None]:
        return [_row(each) for each in first]
    if packings[1].rows is None:
        # Lengths of a second side, such as cached keys, which include the new rows.
        more = [[5], [0, tile, 16], [7, 1, 0, 3, 30]]
    else:
        more = [[-5 if tile > 5 else 0], [6, 0, -3], [9, -tile, 0, 4, 2]]
    return [
        f"{{q: {_row(q)}, k: {_row([a + b for a, b in zip(q, add, strict=True)])}}}"
        for q, add in zip(first, more, strict=True)
    ]


def _row(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"
