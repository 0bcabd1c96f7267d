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

        With `problem.renewed`, these are new tensors, unless an earlier one is still in use: then
        its memory could not be reused, and it is refilled.
        """
        places = {}
        for name, tensor in problem.inputs.items():
            held = self._held.get(name)
            if held is not None and _same_layout(held.memory, tensor):
                self._refill(held, tensor, renewed=problem.renewed)
                places[id(tensor)] = held.tensor
            elif tensor.is_contiguous():
                memory = copy_with_offset(tensor)
                self._held[name] = held = _Held(memory, *_tensor_at(memory))
                places[id(tensor)] = held.tensor

        def placed(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: places.get(id(value), value) for name, value in values.items()}

        return replace(problem, names=placed(problem.names), inputs=placed(problem.inputs))

    @staticmethod
    def _refill(held: _Held, tensor: torch.Tensor, *, renewed: bool) -> None:
        if renewed and held.storage is not None:
            held.tensor = held.memory
            if held.storage() is None:
                held.memory.copy_(tensor)
                held.tensor, held.storage = _tensor_at(held.memory)
                return
            held.tensor, held.storage = _tensor_at(held.memory)
        held.tensor.copy_(tensor)


def _tensor_at(memory: torch.Tensor) -> tuple[torch.Tensor, weakref.ref[Any] | None]:
    """A tensor with a storage of its own at the address of another, which must outlive it.

    The weak reference ends with that storage. On a GPU it is the tensor itself, and None.
    """
    storage = memory.untyped_storage()
    if memory.device.type != "cpu" or not storage.nbytes():
        return memory, None
    address = ctypes.c_uint8 * storage.nbytes()
    content = np.ctypeslib.as_array(address.from_address(storage.data_ptr()))
    flat = torch.frombuffer(content, dtype=memory.dtype)
    tensor = flat.as_strided(memory.shape, memory.stride(), memory.storage_offset())
    return tensor, weakref.ref(content)


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.dtype == other.dtype and one.device == other.device
    return same and one.shape == other.shape and one.stride() == other.stride()
