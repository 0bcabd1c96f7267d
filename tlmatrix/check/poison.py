"""Poison: a NaN in uninitialized memory, with a bit pattern that no arithmetic produces.

It distinguishes an element that was never written from a NaN that was computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import INT_OF_SIZE
from tlmatrix.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

CANARY = -11  # 0xFFF5: NaN in float16, bfloat16, and repeated in float32 and float64

_POISON = {dtype.torch: dtype.poison for dtype in DTYPES.values() if dtype.poison is not None}

MARKS: dict[torch.dtype, int] = {
    dtype: bits
    for dtype, bits in _POISON.items()
    if dtype.itemsize > 2 or dtype in (torch.float16, torch.bfloat16)
}
"""The poison of dtypes in which it is no ordinary value."""


def unwritten(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | None
) -> torch.Tensor:
    """A new tensor full of poison."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    if dtype.is_complex:
        return tensor.fill_(float("nan"))
    fill_poison(tensor)
    return tensor


def poison_mask(tensor: torch.Tensor) -> torch.Tensor | None:
    """The mask of elements that still hold poison; None if there are none."""
    if tensor.dtype not in _POISON or not tensor.dtype.is_floating_point:
        return None
    bits = tensor.detach().view(INT_OF_SIZE[tensor.element_size()])
    mask = bits == _POISON[tensor.dtype]
    return mask if bool(mask.any()) else None


def extent_of(tensor: torch.Tensor) -> int:
    """The number of elements from the first to the last, including gaps between strides."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def as_row(tensor: torch.Tensor, lead: int = 0) -> torch.Tensor:
    """The memory of a tensor as a row of integers, with gaps and `lead` elements before it."""
    start = tensor.storage_offset() - lead
    row = tensor.detach().as_strided((lead + extent_of(tensor),), (1,), start)
    return row.view(INT_OF_SIZE[tensor.element_size()])


def fill_poison(tensor: torch.Tensor) -> None:
    """Fill the memory of a tensor with poison, including gaps between strides."""
    as_row(tensor).fill_(_POISON.get(tensor.dtype, CANARY))


def copy_with_offset(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same storage offset, and so the same alignment."""
    memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory, *place)
