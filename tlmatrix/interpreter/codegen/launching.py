"""The check of a launch that stands before the loops of its grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Context

__all__ = ["write_grid_check"]


def write_grid_check(context: Context, node: Any) -> None:
    """Write the check that a grid has blocks, where its extents are not all constants.

    `node` is the outermost loop of the grid.
    """
    extents: dict[str, Any] = {}
    while type(node).__name__ == "For" and int(node.kind) == 4:
        extents[str(node.thread_binding.thread_tag)] = node.extent
        node = node.body
    values = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
    if all(type(value).__name__ in ("int", "IntImm") and int(value) > 0 for value in values):
        return
    codes = [str(value) if isinstance(value, int) else context.expr(value).code for value in values]
    context.w.line(f"check_grid({context.kernel!r}, {', '.join(codes)})")
