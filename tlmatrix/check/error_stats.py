"""Errors of all results of a problem by region (such as a head of a sequence), in one fast pass.

Errors are measured per region, so that a small uniform error of one head is not averaged out. A
large batch has thousands of regions: dimensions inside a region are reduced at once, and a packed
dimension by segment.

Nearly all comparisons pass and need no more than this. Small tensors are concatenated and measured
together, because a call costs more than its arithmetic, and on a GPU each waits for it. On a CPU,
large ones are measured in chunks that fit its cache, which is three times faster. Errors of rows
are then reduced to regions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        """The root mean square over the tensor from that of its regions, [..., *shape]."""
        squares = per_region.square().mul_(self.elements)
        leading = per_region.shape[: per_region.ndim - len(self.shape)]
        return squares.reshape(*leading, -1).sum(-1).div_(self._whole).sqrt_()

    def spread(self, per_region: torch.Tensor) -> torch.Tensor:
        """Expand values per region to elements, in a shape that broadcasts over the tensor."""
        for axis, index in self._segments.items():
            per_region = per_region.index_select(axis, index)
        return per_region


CHUNK = 2**14
"""Elements per chunk on a CPU: 128 KiB of float64, three of which fit the L2 cache."""
_SMALL = {"cpu": CHUNK, "cuda": 2**20}
"""The elements below which a tensor is measured together with others."""


@dataclass(frozen=True)
class Comparison:
    """A result, its low-precision counterpart, the float64 reference, and the regions."""

    name: str
    got: torch.Tensor
    low: torch.Tensor
    reference: torch.Tensor
    regions: Regions


@dataclass(frozen=True)
class ErrorStats:
    """Errors of results (index 0) and of their low-precision counterparts (1).

    `largest` and `squares`, both float64 [2, regions], hold the largest error and the sum of
    squared errors of each region, tensor after tensor; 0 for empty regions. Two NaN or equal
    infinities have error 0; any other value that is not finite makes the sum NaN or infinite.
    """

    comparisons: tuple[Comparison, ...]
    largest: np.ndarray
    squares: np.ndarray

    def within(self, factors: Sequence[float]) -> np.ndarray:
        """For each region, whether its errors are at most `factor` times those of `low`.

        Compares the largest error and the root mean square. `factors` has one per tensor. False
        if `low` is not finite.
        """
        factor = np.repeat(factors, [each.regions.count for each in self.comparisons])
        largest = self.largest[0] <= self.largest[1] * factor
        squares = self.squares[0] <= self.squares[1] * (factor * factor)
        within: np.ndarray = largest & squares & np.isfinite(self.squares[1])
        return within

    def parts(self) -> Iterator[tuple[Comparison, slice]]:
        """Yield every comparison with the slice of its regions in `largest` and `squares`."""
        begin = 0
        for each in self.comparisons:
            yield each, slice(begin, begin + each.regions.count)
            begin += each.regions.count


def measure_errors(comparisons: Sequence[Comparison]) -> ErrorStats:
    """Measure the errors of one or more tensors, all with elements."""
    groups: dict[int | str, list[Comparison]] = {}
    for each in comparisons:
        groups.setdefault(_group(each), []).append(each)
    comparisons = [each for group in groups.values() for each in group]
    count = sum(len(each.regions.of_rows) for each in comparisons)
    largest, squares = np.empty((2, 2, count))
    end = 0
    with np.errstate(all="ignore"):  # the sum may overflow if a result is very wrong
        for group in groups.values():
            begin, end = end, end + sum(len(each.regions.of_rows) for each in group)
            parts = largest[:, begin:end], squares[:, begin:end]
            if group[0].reference.device.type != "cpu":
                _at_once(group, *parts)
            elif _is_small(group[0]):
                _together(group, *parts)
            else:
                _by_row(group[0], *parts)
                if np.isnan(parts[0]).any():
                    _at_once(group, *parts)
        numbers, first = [], 0
        for each in comparisons:
            numbers.append(each.regions.of_rows + first)
            first += each.regions.count
        region = np.concatenate(numbers)
        farthest, sums = np.zeros((2, first)), np.empty((2, first))
        for result in range(2):
            np.maximum.at(farthest[result], region, largest[result])
            sums[result] = np.bincount(region, squares[result], first)
    return ErrorStats(tuple(comparisons), farthest, sums)


def _group(each: Comparison) -> int | str:
    """The same for tensors that are measured together: small ones, on a GPU of equal rows."""
    if not _is_small(each):
        return f"alone {id(each)}"
    return each.regions.width if each.reference.device.type != "cpu" else "small"


def _is_small(each: Comparison) -> bool:
    return each.reference.numel() < _SMALL.get(each.reference.device.type, CHUNK)


def _together(comparisons: Sequence[Comparison], largest: np.ndarray, squares: np.ndarray) -> None:
    """Write the largest error and the sum of squares of every row of small tensors."""
    values = torch.empty(
        3, sum(each.reference.numel() for each in comparisons), dtype=torch.float64
    )
    for place, tensors in enumerate(
        zip(*((each.got, each.low, each.reference) for each in comparisons), strict=True)
    ):
        # `cat` into float64 converts each tensor, integers exactly.
        torch.cat([_flat(tensor) for tensor in tensors], out=values[place])
    begins, done = [], 0
    for each in comparisons:
        end = done + each.reference.numel()
        begins.append(np.arange(done, end, each.regions.width))
        done = end
    starts = np.concatenate(begins)
    error = (values[:2] - values[2]).abs_()
    np.maximum.reduceat(error.numpy(), starts, 1, out=largest)
    if np.isnan(largest).any():
        error.masked_fill_(_same(values[:2], values[2]), 0.0)
        np.maximum.reduceat(error.numpy(), starts, 1, out=largest)
    np.add.reduceat(error.mul_(error).numpy(), starts, 1, out=squares)


def _by_row(each: Comparison, largest: np.ndarray, squares: np.ndarray) -> None:
    """The same for one tensor on a CPU, in chunks that fit its cache."""
    width, reference = each.regions.width, each.reference.reshape(-1, each.regions.width)
    results = [result.detach().reshape(-1, width) for result in (each.got, each.low)]
    far, norm = torch.from_numpy(largest), torch.from_numpy(squares)
    step = max(1, CHUNK // width)
    scratch = reference.new_empty(2, step, width, dtype=torch.float64)
    for begin in range(0, len(reference), step):
        chunk = slice(begin, begin + step)
        expected = reference[chunk].double()  # of integers and booleans too
        error = scratch[:, : len(expected)]
        for target, result in zip(error.unbind(), results, strict=True):
            part = result[chunk]
            # PyTorch vectorizes float16 to float32, but not float16 to float64.
            target.copy_(part.float() if part.dtype == torch.float16 else part)
        torch.sub(error, expected, out=error).abs_()
        torch.amax(error, 2, out=far[:, chunk])
        torch.linalg.vector_norm(error, dim=2, out=norm[:, chunk])
    norm.square_()


def _at_once(comparisons: Sequence[Comparison], largest: np.ndarray, squares: np.ndarray) -> None:
    """The same for tensors of one device and width in few operations, and one wait for a GPU."""
    width = comparisons[0].regions.width

    def rows(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([each.detach().double().reshape(-1, width) for each in tensors])

    both = [each.got for each in comparisons] + [each.low for each in comparisons]
    reference = rows(each.reference for each in comparisons)
    results = rows(both).view(2, -1, width)
    error = (results - reference).abs_().masked_fill_(_same(results, reference), 0.0)
    largest[:], squares[:] = torch.stack((error.amax(2), error.square().sum(2))).cpu().numpy()


def _same(results: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (results == reference) | (results.isnan() & reference.isnan())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).detach()
    return flat.double() if flat.dtype.itemsize == 1 else flat  # `cat` takes no float8
