"""Errors of all results of a problem by region, in one fast pass.

Nearly all comparisons pass and need no more than this. Small tensors are concatenated and measured
together, because a call costs more than its arithmetic. On a CPU, large ones are measured in chunks
that fit its cache, which is three times faster. Errors of rows are then reduced to regions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.check.regions import Regions

CHUNK = 2**14
"""Elements per chunk on a CPU: 128 KiB of float64, three of which fit the L2 cache."""


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
    comparisons = sorted(comparisons, key=_small)
    rows = np.cumsum([0, *(len(each.regions.of_rows) for each in comparisons)])
    largest, squares = np.empty((2, 2, rows[-1]))
    with np.errstate(all="ignore"):  # the sum may overflow if a result is very wrong
        single = next((n for n, each in enumerate(comparisons) if _small(each)), len(comparisons))
        for number, each in enumerate(comparisons[:single]):
            begin, end = rows[number : number + 2]
            parts = largest[:, begin:end], squares[:, begin:end]
            on_cpu = each.reference.device.type == "cpu"
            (_by_row if on_cpu else _at_once)(each, *parts)
            if on_cpu and np.isnan(parts[0]).any():
                _at_once(each, *parts)
        if single < len(comparisons):
            _together(comparisons[single:], largest[:, rows[single] :], squares[:, rows[single] :])
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


def _small(each: Comparison) -> bool:
    """Whether to measure the tensor together with other small ones."""
    return each.reference.device.type == "cpu" and each.reference.numel() < CHUNK


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
    scratch = reference.new_empty(2, step, width)
    for begin in range(0, len(reference), step):
        chunk = slice(begin, begin + step)
        expected = reference[chunk]
        error = scratch[:, : len(expected)]
        for target, result in zip(error.unbind(), results, strict=True):
            part = result[chunk]
            # PyTorch vectorizes float16 to float32, but not float16 to float64.
            target.copy_(part.float() if part.dtype == torch.float16 else part)
        torch.sub(error, expected, out=error).abs_()
        torch.amax(error, 2, out=far[:, chunk])
        torch.linalg.vector_norm(error, dim=2, out=norm[:, chunk])
    norm.square_()


def _at_once(each: Comparison, largest: np.ndarray, squares: np.ndarray) -> None:
    """The same for one tensor in few operations, on any device."""
    results = torch.stack([each.got.detach().double(), each.low.detach().double()])
    error = (results - each.reference).abs_()
    rows = error.masked_fill_(_same(results, each.reference), 0.0).view(2, -1, each.regions.width)
    largest[:], squares[:] = torch.stack((rows.amax(2), rows.square().sum(2))).cpu().numpy()


def _same(results: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (results == reference) | (results.isnan() & reference.isnan())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).detach()
    return flat.double() if flat.dtype.itemsize == 1 else flat  # `cat` takes no float8
