"""Argument checks of the multi-GPU operators."""

import torch

from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.gemm.validate import OUT_DTYPES, names

__all__ = ["check_bias", "check_partition", "check_reducible", "check_rows"]


def check_rows(
    name: str, mine: int, total: int | None, context: Context, keyword: str = "rows"
) -> int:
    """The rows of all ranks, given this rank's `mine`; `keyword` is the argument name of `total`.

    Raises:
        ValueError: `mine` is not this rank's part of `total`.
    """
    if total is None:
        return mine * context.world
    check_partition(name, "rows", mine, total, context, keyword)
    return total


def check_partition(
    name: str, what: str, mine: int, total: int, context: Context, keyword: str
) -> None:
    """Raises ValueError unless `mine` (of `what`) is this rank's part of `total`."""
    begin, end = row_range(total, context.world, context.rank)
    if end - begin != mine:
        raise ValueError(
            f"{name} must have {end - begin} {what} on rank {context.rank}, its part of "
            f"{keyword}={total} over {context.world} ranks, got {mine}"
        )


def check_reducible(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError for a dtype that is not summed in float32, or a scalar."""
    if tensor.dtype not in OUT_DTYPES:
        raise ValueError(f"{name} must be one of {names(OUT_DTYPES)}, got {tensor.dtype}")
    if tensor.ndim == 0:
        raise ValueError(f"{name} must have at least 1 dimension, got a scalar")


def check_bias(bias: torch.Tensor | None, columns: int, device: torch.device) -> None:
    """Raises ValueError unless the bias fits the columns of the result."""
    if bias is None:
        return
    if tuple(bias.shape) != (columns,):
        raise ValueError(f"bias must have shape ({columns},), got {tuple(bias.shape)}")
    if bias.dtype not in OUT_DTYPES:
        raise ValueError(f"bias must be one of {names(OUT_DTYPES)}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of a, {device}, got {bias.device}")
