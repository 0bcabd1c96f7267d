"""What the operators of several ranks ask of their arguments, with the words a user needs."""

import torch

from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.gemm.validate import OUT_DTYPES, names

__all__ = ["check_bias", "check_reducible", "check_rows", "check_share"]


def check_rows(
    name: str, mine: int, total: int | None, context: Context, keyword: str = "rows"
) -> int:
    """The rows of all ranks, where this one has `mine`; `keyword` is how a caller gives `total`.

    Raises:
        ValueError: a `total` of which this rank's share is another.
    """
    if total is None:
        return mine * context.world
    check_share(name, "rows", mine, total, context, keyword)
    return total


def check_share(
    name: str, what: str, mine: int, total: int, context: Context, keyword: str
) -> None:
    """This rank's share of `total`, given as `keyword`, is what it has: `mine` of `what`.

    Raises:
        ValueError: it is another.
    """
    begin, end = row_range(total, context.world, context.rank)
    if end - begin != mine:
        raise ValueError(
            f"{name} must have {end - begin} {what} on rank {context.rank}, its share of "
            f"{keyword}={total} among {context.world} ranks, got {mine}"
        )


def check_reducible(name: str, tensor: torch.Tensor) -> None:
    """It has a dtype that is summed in float32, and rows."""
    if tensor.dtype not in OUT_DTYPES:
        raise ValueError(f"{name} must be one of {names(OUT_DTYPES)}, got {tensor.dtype}")
    if tensor.ndim == 0:
        raise ValueError(f"{name} must have at least 1 dimension, got a scalar")


def check_bias(bias: torch.Tensor | None, columns: int, device: torch.device) -> None:
    """It fits the columns of the result."""
    if bias is None:
        return
    if tuple(bias.shape) != (columns,):
        raise ValueError(f"bias must have shape ({columns},), got {tuple(bias.shape)}")
    if bias.dtype not in OUT_DTYPES:
        raise ValueError(f"bias must be one of {names(OUT_DTYPES)}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of a, {device}, got {bias.device}")
