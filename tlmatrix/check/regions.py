"""Vectorized reductions over the regions of a tensor (such as a head of a sequence).

Errors are measured per region, so that a small uniform error of one head is not averaged out. A
large batch has thousands of regions: dimensions inside a region are reduced at once, and a packed
dimension by segment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.problem.model import Dim


@dataclass(frozen=True)
class _Packed:
    """A packed dimension: the region of each index, and the number of regions."""

    dim: Dim
    index: np.ndarray
    count: int


def _packed(dim: Dim) -> _Packed:
    assert dim.region is not None
    index = np.asarray(dim.region, dtype=np.int64)
    if index.shape != (dim.size,):
        raise ValueError(f"dim {dim.name} has {dim.size} entries and {index.size} regions")
    count = max(int(index.max()) + 1 if dim.size else 1, len(dim.starts or ()))
    return _Packed(dim, index, count)


class Regions:
    """The regions of a tensor: all combinations of the regions of its dims.

    Reductions return one value per region, in a tensor of shape `shape`: a dimension inside a
    region has size 1, any other one entry per region.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        device: torch.device,
        others: Iterable[Regions] = (),
    ) -> None:
        """The regions of `dims`; reuses data of packed dims that one of `others` has."""
        self._dims, self._device = tuple(dims), device
        self._inside = tuple(axis for axis, dim in enumerate(dims) if dim.region is None)
        self._packed: dict[int, _Packed] = {}
        shape = [1] * len(dims)
        for axis, dim in enumerate(dims):
            if dim.region is None:
                continue
            shape[axis] = dim.size
            if dim.region != range(dim.size):
                known = (other._packed.get(id(dim)) for other in others)  # noqa: SLF001 - its own kind
                packed = next((each for each in known if each is not None), None)
                self._packed[id(dim)] = packed = packed or _packed(dim)
                shape[axis] = packed.count
        self.shape = tuple(shape)
        """The number of regions along each dimension."""
        self.count = math.prod(shape)
        """The number of regions."""
        self.width = dims[-1].size if dims and dims[-1].region is None else 1
        """Elements of a row: the size of the last dimension if it is inside a region, else 1."""

    @cached_property
    def of_rows(self) -> np.ndarray:
        """The flat index into `shape` of the region of every row, on the host."""
        leading = self._dims if self.width == 1 else self._dims[:-1]
        numbers = np.zeros(1, dtype=np.int64)
        for axis, dim in enumerate(leading):
            packed = self._packed.get(id(dim))
            if dim.region is None:
                along = np.zeros(dim.size, dtype=np.int64)
            else:
                along = np.arange(dim.size) if packed is None else packed.index
            numbers = np.add.outer(numbers * self.shape[axis], along).ravel()
        return numbers

    @cached_property
    def _segments(self) -> dict[int, torch.Tensor]:
        """The region of each index of every packed dimension, on the device, by axis."""
        return {
            axis: torch.from_numpy(self._packed[id(dim)].index).to(self._device)
            for axis, dim in enumerate(self._dims)
            if id(dim) in self._packed
        }

    @cached_property
    def elements(self) -> torch.Tensor:
        """The number of elements of each region."""
        size = math.prod(self._dims[axis].size for axis in self._inside)
        elements = torch.full(self.shape, float(size), dtype=torch.float64, device=self._device)
        for axis, dim in enumerate(self._dims):
            packed = self._packed.get(id(dim))
            if packed is not None:
                sizes = np.bincount(packed.index, minlength=packed.count)
                along = [-1 if at == axis else 1 for at in range(len(self._dims))]
                elements *= torch.from_numpy(sizes).to(self._device).view(along)
        return elements

    @cached_property
    def _divisor(self) -> torch.Tensor:
        return self.elements.clamp_min(1)

    @cached_property
    def _whole(self) -> float:
        return max(float(math.prod(dim.size for dim in self._dims)), 1.0)

    def rows(self, marks: torch.Tensor) -> torch.Tensor:
        """The approximate number of rows with elements marked by 1, per region."""
        alone = len(self._dims) == 1
        return self.sum(marks) / (1 if alone else max(self.width, 1))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over each region."""
        if self._inside:
            values = values.sum(self._inside, keepdim=True)
        for axis, index in self._segments.items():
            shape = list(values.shape)
            shape[axis] = self.shape[axis]
            values = values.new_zeros(shape).index_add_(axis, index, values)
        return values

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest value of each region, for nonnegative values; 0 for an empty region."""
        if values.numel() == 0:
            return values.new_zeros(self.shape)
        if self._inside:
            values = values.amax(self._inside, keepdim=True)
        for axis, index in self._segments.items():
            shape = list(values.shape)
            shape[axis] = self.shape[axis]
            along = index.reshape(-1, *[1] * (values.ndim - axis - 1))
            values = values.new_zeros(shape).scatter_reduce_(
                axis, along.expand(values.shape), values, "amax"
            )
        return values

    def rms(self, values: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """The root mean square over each region; 0 for an empty one.

        Writes squares to `scratch` if given, which may be `values` itself.
        """
        return self.root(self.sum(torch.mul(values, values, out=scratch)))

    def root(self, squares: torch.Tensor) -> torch.Tensor:
        """The root mean square over each region from its sum of squares, which it overwrites."""
        return squares.div_(self._divisor).sqrt_()

    def rms_of_all(self, per_region: torch.Tensor) -> torch.Tensor:
        """The root mean square over the tensor from that of its regions."""
        return per_region.square().mul_(self.elements).sum().div_(self._whole).sqrt_()

    def spread(self, per_region: torch.Tensor) -> torch.Tensor:
        """Expand values per region to elements, in a shape that broadcasts over the tensor."""
        for axis, index in self._segments.items():
            per_region = per_region.index_select(axis, index)
        return per_region
