"""Sums and maxima over the regions of a tensor (a head of a sequence), without a loop over them.

A uniform small error of one head must not drown in a large tensor, so every distance is taken
per region; a batch of a thousand sequences has many thousand regions, so reductions are
vectorised: dimensions inside a region are reduced at once, and only a packed dimension, whose
regions have lengths of their own, is added up by segment.
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

__all__ = ["Regions"]


@dataclass(frozen=True)
class _Packed:
    """A packed dim: the region of each index, and how many regions there are."""

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
    """The regions of a tensor with these dims: every combination of its dims' regions.

    Reductions return one value a region, of shape `shape`: a dimension keeps one entry for each
    of its regions, and has size 1 where it lies inside a region.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        device: torch.device,
        others: Iterable[Regions] = (),
    ) -> None:
        """The regions of `dims`; a packed dim that one of `others` has is not counted again."""
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
        """One entry for each region along every dimension."""
        self.count = math.prod(shape)
        """How many regions there are."""
        self.width = dims[-1].size if dims and dims[-1].region is None else 1
        """Elements of a row: what lies along the last dimension, where that is inside a region."""

    @cached_property
    def of_rows(self) -> np.ndarray:
        """The number of every row's region, on the host, by rows; `shape` numbers regions."""
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
        """The region of each index of every packed dim, on the device, by axis."""
        return {
            axis: torch.from_numpy(self._packed[id(dim)].index).to(self._device)
            for axis, dim in enumerate(self._dims)
            if id(dim) in self._packed
        }

    @cached_property
    def elements(self) -> torch.Tensor:
        """How many elements each region has."""
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
        """How many rows hold elements marked with 1, about; a row is the last dimension."""
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
        """The largest of the values, which are not negative; 0 for an empty region."""
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

        Squares are written to `scratch`, where it is given; it may be `values` itself.
        """
        return self.root(self.sum(torch.mul(values, values, out=scratch)))

    def root(self, squares: torch.Tensor) -> torch.Tensor:
        """The root mean square over each region, from its sum of squares, which is overwritten."""
        return squares.div_(self._divisor).sqrt_()

    def rms_of_all(self, per_region: torch.Tensor) -> torch.Tensor:
        """The root mean square over the tensor, from that of its regions."""
        return per_region.square().mul_(self.elements).sum().div_(self._whole).sqrt_()

    def spread(self, per_region: torch.Tensor) -> torch.Tensor:
        """Every region's value at its elements, in a shape that broadcasts over the tensor."""
        for axis, index in self._segments.items():
            per_region = per_region.index_select(axis, index)
        return per_region
