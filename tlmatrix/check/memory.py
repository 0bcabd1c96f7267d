"""Memory of tensors: bitwise comparison, poison, and the memory that several calls share.

Bits: a NaN equals itself, and 0.0 differs from -0.0.

Poison: a NaN in uninitialized memory, with a bit pattern that no arithmetic produces. It
distinguishes an element that was never written from a NaN that was computed.

A caller of several calls may copy other data into a tensor, or free it and get another one at its
address. Both find an entry that keeps what it read of a tensor (such as lengths on the host) by its
identity or its address; the second also one that compares versions, since a new tensor starts at
version 0.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.problem.model import Problem

INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype with the given number of bytes per element."""


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not left.numel():
        return True  # the views below fail for some strides of an empty tensor
    if left.requires_grad or right.requires_grad:
        left, right = left.detach(), right.detach()
    size = left.element_size()
    # Comparing 8-byte integers is eighteen times faster than 2-byte ones.
    if size < 8 and left.is_contiguous() and right.is_contiguous():
        ends = size * (left.numel() | left.storage_offset() | right.storage_offset())  # type: ignore[operator]
        if ends % 8 == 0:
            size, left, right = 8, left.view(-1), right.view(-1)
        elif size < 4 and ends % 4 == 0:
            size, left, right = 4, left.view(-1), right.view(-1)
    kind = INT_OF_SIZE[size]
    return torch.equal(left.view(kind), right.view(kind))


def which_differ(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Whether the tensors of each pair, of one shape and dtype, differ in bits.

    A GPU is waited for once.
    """
    if all(left.device.type == "cpu" for left, _ in pairs):
        return [not same_bits(left, right) for left, right in pairs]
    flags = []
    for left, right in pairs:
        kind = INT_OF_SIZE[left.element_size()]
        flags.append((left.view(kind) != right.view(kind)).any())
    differ: list[bool] = torch.stack(flags).tolist()
    return differ


# Poison -------------------------------------------------------------------------------------------

CANARY = -11  # 0xFFF5: NaN in float16, bfloat16, and repeated in float32 and float64

# As a signed integer, which views of tensors are here: that of float8_e8m0fnu has the sign bit.
_POISON = {
    dtype.torch: (dtype.poison ^ 1 << dtype.bits - 1) - (1 << dtype.bits - 1)
    for dtype in DTYPES.values()
    if dtype.poison is not None
}

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


# Several calls ------------------------------------------------------------------------------------


@dataclass
class _Held:
    """The memory of an input, and the tensor there that calls get.

    `memory` owns the bytes; `storage` is a weak reference that ends with the storage of `tensor`.
    """

    memory: torch.Tensor
    tensor: torch.Tensor
    storage: weakref.ref[Any] | None


class SameMemory:
    """Places the inputs of consecutive calls in the same memory, where shape and dtype allow it."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def place(self, problem: Problem) -> Problem:
        """The problem with inputs in the memory of the inputs of earlier problems.

        With `problem.renewed`, these are new tensors, in other memory if an earlier one is still in
        use.
        """
        places = {}
        for name, tensor in problem.inputs.items():
            held = self._held.get(name)
            if held is not None and _same_layout(held.memory, tensor):
                held = self._held[name] = _refilled(held, tensor, renewed=problem.renewed)
                places[id(tensor)] = held.tensor
            elif tensor.is_contiguous():
                held = self._held[name] = _in_memory(copy_with_offset(tensor))
                places[id(tensor)] = held.tensor

        def placed(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: places.get(id(value), value) for name, value in values.items()}

        return replace(problem, names=placed(problem.names), inputs=placed(problem.inputs))


def _refilled(held: _Held, tensor: torch.Tensor, *, renewed: bool) -> _Held:
    if not renewed or held.storage is None:
        held.tensor.copy_(tensor)
        return held
    held.tensor = held.memory
    if held.storage() is not None:
        return _in_memory(copy_with_offset(tensor))
    held.memory.copy_(tensor)
    return _in_memory(held.memory)


def _in_memory(memory: torch.Tensor) -> _Held:
    """A tensor in the memory of another one, on the CPU with a storage of its own."""
    storage = memory.untyped_storage()
    if memory.device.type != "cpu" or not storage.nbytes():
        return _Held(memory, memory, None)
    buffer: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    buffer.owner = memory  # which lives as long as the tensor
    content = np.ctypeslib.as_array(buffer)
    flat = torch.frombuffer(content, dtype=memory.dtype)
    tensor = flat.as_strided(memory.shape, memory.stride(), memory.storage_offset())
    return _Held(memory, tensor, weakref.ref(content))


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.dtype == other.dtype and one.device == other.device
    return same and one.shape == other.shape and one.stride() == other.stride()
