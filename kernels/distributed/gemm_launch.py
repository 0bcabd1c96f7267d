"""Launch parameters of the kernels in `gemm_ordered`: the kernel, its tile size and tile order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tlmatrix_kernels.distributed.swizzle import panel_height
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.tiles import gemm_tiles, size_for
from tlmatrix_kernels.target import capability, multiprocessors


@dataclass(frozen=True)
class GemmLaunch:
    """A kernel and the order of its tiles, which are its last arguments (see `swizzle`).

    Attributes:
        kernel: the kernel.
        first: the first tile row.
        panel: tile rows per panel.
        block_m: rows of a tile.
    """

    kernel: Any
    first: int
    panel: int
    block_m: int


@dataclass(frozen=True)
class CheckedCall:
    """A call with checked arguments, cached for later calls with the same ones.

    Attributes:
        m, n, k: of this rank's product.
        out_dtype: dtype of the result.
        transpose_b: whether the second operand is stored transposed.
        cuts: the row range (begin, end) of each rank.
        halves: by half, the operator's views of symmetric memory.
        launches: the launch, by whether rows are aligned (`rows_aligned`).
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
    """The cache key of a call: all properties of the operands that the checks read, and `more`."""
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
    """The launch for a product [m, n] whose rows are partitioned over `world` ranks.

    Args:
        factory: a kernel factory of `gemm_ordered`.
        operand: one of the operands.
        out: [m, n] with m and n at least 1, in the dtype that the kernel writes.
        world: the number of ranks.
        row: start with the tile of this row.
        transpose_b: whether the second operand is stored transposed.
        whole_rows: see `tlmatrix_kernels.gemm.validate.rows_aligned`.
        whole_tile: start with the first tile without rows before `row`, wrapping around the end.
        panels: the number of panels per rank, if it has enough rows (`swizzle.panel_height`).
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
