"""How input tensors lie in memory: a kernel that assumes strides or alignment is right until here.

By default every input is contiguous and starts where an allocator would let it. The axis `storage`,
which any case may have, lays all of them out otherwise; their values stay the same. Without torch
the names are known.

============  ==================================================================================
`offset`      contiguous, but one element into its memory: no longer aligned to 16 bytes
`sliced`      a slice of something larger, one element in, in rows and in the last dimension
`transposed`  dimensions lie in reverse in memory: of a matrix, columns
`ones`        dimensions of size 1 have strides of their own, as after `x[:, None]` of a slice;
              PyTorch calls such a tensor contiguous
`expanded`    cotangents alone: one number for all elements, as `out.sum().backward()` gives
============  ==================================================================================

Around a tensor that is `offset` or `sliced` the memory holds huge values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.problem.poison import huge
from tlmatrix.spec.model.fields import STORAGES
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from tlmatrix.spec.values import Value

__all__ = ["explain_storage", "flattened", "laid_out"]

_GAP = 3
"""Elements that a slice leaves out in its last dimension: odd, so that no row is aligned."""


def explain_storage(value: Value) -> str | None:
    """Why `value` names no storage, or None where it does."""
    if value is None or (isinstance(value, str) and value in STORAGES):
        return None
    return f"unknown storage {value!r}{nearest(value, STORAGES)}"


def laid_out(
    storage: Value, tensors: Mapping[str, torch.Tensor], cotangents: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors with equal values in another storage; None leaves them alone.

    cotangents: the names of those that `expanded` concerns; the others it leaves alone.
    """
    if storage is None:
        return dict(tensors)
    return {
        name: tensor
        if storage == "expanded" and name not in cotangents
        else _laid_out(str(storage), tensor)
        for name, tensor in tensors.items()
    }


def flattened(storage: Value, cotangent: torch.Tensor) -> torch.Tensor:
    """A cotangent that `storage` can lay out: all ones where it is to be expanded."""
    return cotangent.new_ones(cotangent.shape) if storage == "expanded" else cotangent


def _laid_out(storage: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return tensor
    match storage:
        case "offset":
            return _inside(tensor, list(tensor.shape))
        case "sliced":
            sizes = list(tensor.shape)
            sizes[0] += 1
            sizes[-1] += _GAP
            return _inside(tensor, sizes)
        case "transposed":
            order = tuple(reversed(range(tensor.ndim)))
            return tensor.permute(order).contiguous().permute(order)
        case "ones":
            strides = [
                _GAP if size == 1 else stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ]
            return tensor.as_strided(tensor.shape, strides)
    first = tensor.flatten()[:1]
    same = bool((tensor == first).all())
    return first.clone().reshape((1,) * tensor.ndim).expand(tensor.shape) if same else tensor


def _inside(tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A copy of the tensor as a part of one of `sizes`, one element into memory."""
    count = 1
    strides = []
    for size in reversed(sizes):
        strides.append(count)
        count *= size
    noise = _noise(count + 1, tensor)
    result = noise.as_strided(tensor.shape, strides[::-1], 1)
    result.copy_(tensor)
    return result


def _noise(count: int, like: torch.Tensor) -> torch.Tensor:
    """Values that must not be seen."""
    if not like.dtype.is_floating_point:
        return like.new_ones(count)
    return like.new_full((count,), huge(str(like.dtype).removeprefix("torch.")))
