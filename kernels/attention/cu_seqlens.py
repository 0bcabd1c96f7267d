"""Host copies of cu_seqlens tensors, cached per tensor.

A copy from the GPU waits for all earlier work and leaves the GPU idle until the next launch; a
model would do one per layer with the same cu_seqlens. The copy is therefore cached while the tensor
is alive, and repeated if PyTorch has modified the tensor in place since.
"""

import torch
from torch.utils.weak import WeakIdKeyDictionary

_HOST_VALUES = WeakIdKeyDictionary()
"""Tensor to (its version at the copy, its values)."""


def host_values(*tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """The values of 1-d int32 tensors on one device; all that are not cached are copied at once."""
    found = [_kept(tensor) for tensor in tensors]
    missing = [tensor for tensor, values in zip(tensors, found, strict=True) if values is None]
    if missing:
        numbers = torch.cat(missing).tolist()
        for tensor in missing:
            own, numbers = tuple(numbers[: len(tensor)]), numbers[len(tensor) :]
            _HOST_VALUES[tensor] = (_version(tensor), own)
            found[found.index(None)] = own
    return found


def _kept(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The values of a tensor that has been copied and has not changed since."""
    version = _version(tensor)
    copied = _HOST_VALUES.get(tensor) if version is not None else None
    return copied[1] if copied is not None and copied[0] == version else None


def _version(tensor: torch.Tensor) -> int | None:
    """The in-place version counter of the tensor; None if it does not cover all writes.

    Tensors of inference mode have no counter. A CPU tensor may share memory with other libraries,
    such as NumPy, and is cheap to read again.
    """
    counted = tensor.is_cuda and not tensor.is_inference()
    return tensor._version if counted else None  # noqa: SLF001 - there is no public name
