"""The bounds of packed sequences as numbers of the host, fetched once for each tensor.

Copying from a GPU waits for all the work before it, and leaves the GPU idle until the next launch:
for a model, once a layer with the same cu_seqlens. So what was fetched is kept as long as the
tensor lives, and fetched again when PyTorch has changed the tensor in place since.
"""

import torch
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["on_host"]

_FETCHED = WeakIdKeyDictionary()
"""Tensor to (its version when it was fetched, its numbers)."""


def on_host(*tensors: torch.Tensor) -> list[list[int]]:
    """The numbers of 1-d int32 tensors of one device; what is new is copied at once, together."""
    missing = [tensor for tensor in tensors if not _known(tensor)]
    if missing:
        numbers = torch.cat(missing).tolist()
        for tensor in missing:
            own, numbers = numbers[: len(tensor)], numbers[len(tensor) :]
            _FETCHED[tensor] = (_version(tensor), own)
    return [_FETCHED[tensor][1] for tensor in tensors]


def _version(tensor: torch.Tensor) -> int | None:
    """What PyTorch counts up when it changes the tensor in place; None where nothing counts.

    Nothing counts for tensors of inference mode, and on a CPU others may write into the memory
    (NumPy, for one), where asking again costs nothing.
    """
    counted = tensor.is_cuda and not tensor.is_inference()
    return tensor._version if counted else None  # noqa: SLF001 - there is no public name


def _known(tensor: torch.Tensor) -> bool:
    version = _version(tensor)
    return version is not None and tensor in _FETCHED and _FETCHED[tensor][0] == version
