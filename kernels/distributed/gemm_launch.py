"""How the operators launch the kernels of `gemm_ordered`: which tiles, and in which order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tlmatrix_kernels.distributed.swizzle import panel_height
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.tiles import gemm_tiles, size_for
from tlmatrix_kernels.target import capability, multiprocessors

__all__ = ["CheckedCall", "GemmLaunch", "call_key", "gemm_launch"]


@dataclass(frozen=True)
class GemmLaunch:
    """A kernel, and the order of its tiles as its last arguments have it (`swizzle`).

    Attributes:
        kernel: the kernel.
        first: the row of tiles that comes first.
        panel: rows of tiles that are walked together.
        block_m: rows of a tile.
    """

    kernel: Any
    first: int
    panel: int
    block_m: int


@dataclass(frozen=True)
class CheckedCall:
    """A call whose arguments fit, and what later ones with such arguments need not find again.

    Attributes:
        m, n, k: of this rank's product.
        out_dtype: of the result.
        transpose_b: whether the second factor is stored transposed.
        cuts: the rows of m that each rank has.
        halves: by number what an operator keeps of each half of its symmetric memory.
        launches: by whether rows are whole (`rows_aligned`) the kernel.
    """

    m: int
    n: int
    k: int
    out_dtype: torch.dtype
    transpose_b: bool
    cuts: list[tuple[int, int]]
    halves: dict[int, Any] = field(default_factory=dict)
    launches: dict[bool, GemmLaunch] = field(default_factory=dict)


def call_key(a: torch.Tensor, b: torch.Tensor, *more: object) -> tuple[object, ...]:
    """What two factors have that a check looks at, and `more`: equal where equal calls are."""
    return (a.shape, b.shape, a.dtype, b.dtype, a.device, b.device, *more)


def gemm_launch(
    factory: Callable[..., Any],
    operand: torch.Tensor,
    out: torch.Tensor,
    world: int,
    row: int,
    *,
    transpose_b: bool,
    whole_rows: bool,
    whole_tile: bool,
    panels: int = 1,
) -> GemmLaunch:
    """The launch for a product [m, n] whose rows belong to `world` ranks.

    Args:
        factory: of `gemm_ordered`.
        operand: one of the factors.
        out: [m, n] with m and n at least 1, of the dtype that the kernel writes.
        world: the number of ranks.
        row: with whose tile to begin.
        transpose_b: whether the second factor is stored transposed.
        whole_rows: see `tlmatrix_kernels.gemm.validate.rows_aligned`.
        whole_tile: begin with the first tile that has no row before `row`, or around the end.
        panels: that a share has where it is high enough (`swizzle.panel_height`).
    """
    m, n = out.shape
    arch = capability()
    wide = gemm_tiles(arch, "wide", whole_rows=whole_rows)
    size = size_for(m, n, wide, multiprocessors(operand.device))
    block_m = gemm_tiles(arch, size, whole_rows=whole_rows).block_m
    kernel = factory(
        dtype_name(operand.dtype), dtype_name(out.dtype), transpose_b, whole_rows, size
    )
    before = -(-row // block_m) if whole_tile else row // block_m
    panel = panel_height(m, world, block_m, panels=panels)
    return GemmLaunch(kernel, before % -(-m // block_m), panel, block_m)
