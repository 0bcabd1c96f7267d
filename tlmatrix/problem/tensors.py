"""Tensors by name, computed on first access, and copies of a GPU's tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from tlmatrix.dtypes import is_float8

Made = TypeVar("Made")


class LazyMapping(Mapping[str, Made]):
    """A mapping with the keys `names`; calls `make(name)` once, on first access."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Made]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._made: dict[str, Made] = {}

    def __getitem__(self, name: str) -> Made:
        """The value, computed on first access; raises KeyError if the name is unknown."""
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        """Whether the name is a key; computes nothing."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._names)


def on_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Contiguous copies of tensors of one device, in one transfer: each transfer waits for it."""
    if not tensors:
        return []
    # The widest dtype first: each begins at a multiple of its width.
    order = sorted(range(len(tensors)), key=lambda number: -tensors[number].element_size())
    rows = [flat_bytes(tensors[number]) for number in order]
    memory = torch.cat(rows).cpu()
    copies = list(tensors)
    split = torch.split(memory, [len(row) for row in rows])
    for number, row in zip(order, split, strict=True):
        copies[number] = row.view(tensors[number].dtype).view(tensors[number].shape)
    return copies


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its elements, [bytes]; a view if it is contiguous.

    A contiguous tensor of one element or none may have any strides, with which `view` fails.
    """
    dense = tensor.detach().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def indexable(tensor: torch.Tensor) -> torch.Tensor:
    """View 8-bit dtypes as integers: PyTorch cannot index float8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Float8 as float32, exactly: PyTorch neither compares nor indexes it; others as they are."""
    return tensor.float() if is_float8(tensor.dtype) else tensor


# The error of float32 sums in tensor cores, which truncate ----------------------------------------
#
# A tensor core adds a block of products to its accumulator by aligning all of them to the largest
# and cutting off lower bits (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
# tensor cores", PeerJ Computer Science 2021: 8 products and one more bit than float32 on Ampere).
# If the sum grows towards one sign, each term loses about half of the last kept bit of the
# accumulator, all of them in one direction: the error grows with the number of terms.


_PER_TERM = 0.375 * 2.0**-24
"""Of the result's size, for each term: what the model of `tests/problem/test_tensor_cores.py` loses
at most with the blocks of Ampere; about half of it with those of Hopper."""
SYSTEMATIC = 1 / 0.6
"""The spread of errors of one direction, in multiples of the largest: the bound of a root mean
square has 0.6 times the spread."""


def truncation(terms: int) -> float:
    """The largest error of a sum of `terms` products, in multiples of its size."""
    return terms * _PER_TERM


FLOAT8_UNIT = 2.0**-15
"""Unit roundoff of float8 sums. Hopper's tensor cores keep about 14 bits of a sum of float8
products (DeepSeek-V3, arXiv:2412.19437, section 3.3.2): of 32 products and the accumulator, bits
below the 14th of the largest are truncated. With M the sum of the terms' magnitudes, that bit is
at most 2**-13 M. If all terms have one sign, 32 terms lose half of it each: 16 * 2**-13 M, or 64
units, for the second half of a step of 64. A kernel that adds steps of 64 in float32 stays within
64 units; one that accumulates longer sums in the tensor cores does not."""
_FLOAT8_STEP = 128
"""The longest sums of float8 products that kernels accumulate in tensor cores before they add them
in float32, so that enough of their bits remain (the same section)."""


def float8_truncation(terms: int) -> float:
    """The largest error of a sum of `terms` float8 products, in multiples of their magnitudes."""
    return min(terms, _FLOAT8_STEP) * FLOAT8_UNIT
