"""Memory of a caller that makes several calls: refilled tensors, or new ones at their addresses.

A caller may copy other data into a tensor, or free it and get another one at its address. Both find
an entry that keeps what it read of a tensor (such as lengths on the host) by its identity or its
address; the second also one that compares versions, since a new tensor starts at version 0.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.check.poison import copy_with_offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem.model import Problem


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
