"""Argument checks of the multi-GPU operators."""

import torch

from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.gemm.validate import OUT_DTYPES, names

UNEVEN = "ranks with different numbers of rows must pass {0}=, the total"
"""Hint for sizes that differ between ranks; the placeholder is the argument."""


def check_context(context: object, kind: type = Context) -> None:
    """Raises TypeError unless `context` is of `kind`."""
    if not isinstance(context, kind):
        create = "create_context" if kind is Context else "create_two_level_context"
        raise TypeError(f"context must be a {kind.__name__} ({create}), got {context!r}")


def check_bool(name: str, value: object) -> None:
    """Raises ValueError unless `value` is True or False."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_overlap(overlap: object, context: Context) -> None:
    """Checks the argument `overlap`.

    Raises:
        ValueError: it is not True, False or None.
        RuntimeError: it is True while a CUDA graph is captured.
    """
    if overlap is not None and not isinstance(overlap, bool):
        raise ValueError(f"overlap must be True, False or None, got {overlap!r}")
    if overlap and not context.direct:
        raise ValueError("overlap must be False or None between GPUs without NVLink, got True")
    if overlap and context.world > 1 and context.capturing():
        raise RuntimeError(
            "overlap=True cannot be captured in a CUDA graph: replays would wait for the epoch of "
            "the capture; use overlap=False"
        )


def check_size(name: str, value: object) -> None:
    """Raises ValueError unless `value` is an int of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, or None, got {value!r}")


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
    """Raises ValueError unless `total` is a size, and `mine` (of `what`) this rank's part of it."""
    check_size(keyword, total)
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
