"""How far all results of a problem are from their references, by region, in one pass.

This is what a comparison costs that passes, and nearly all pass; most tensors are small, and a
call costs more than its arithmetic. So small tensors are laid one after the other and measured
together; large ones, on a CPU, in pieces that stay in its cache, for temporaries of a tensor's
size cost three times as much. Then the rows of all are gathered into all regions at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.check.regions import Regions

__all__ = ["PIECE", "Measured", "Survey", "survey"]

PIECE = 2**14
"""Elements that a CPU takes at once: 128 KiB of float64, three of which its second cache holds."""


@dataclass(frozen=True)
class Measured:
    """A result to measure, with the low-precision one, the float64 reference and the regions."""

    name: str
    got: torch.Tensor
    low: torch.Tensor
    reference: torch.Tensor
    regions: Regions


@dataclass(frozen=True)
class Survey:
    """Distances of results (index 0) and of low-precision ones (1) from the reference.

    `largest` and `squares`, both float64 [2, regions], hold the largest distance and the sum of
    squares of each region of each tensor, one tensor after the other; 0 where empty. The distance
    of equal infinities, or of NaNs, is 0; another that is no finite number makes the sum none.
    """

    measured: tuple[Measured, ...]
    largest: np.ndarray
    squares: np.ndarray

    def within(self, factors: Sequence[float]) -> np.ndarray:
        """Of each region: whether its results are at most `factor` times as far off as `low`'s.

        Both the largest and the root mean square. `factors` has one for each tensor; where `low` is
        not finite, nothing is.
        """
        factor = np.repeat(factors, [each.regions.count for each in self.measured])
        near = self.largest[0] <= self.largest[1] * factor
        steady = self.squares[0] <= self.squares[1] * (factor * factor)
        within: np.ndarray = near & steady & np.isfinite(self.squares[1])
        return within

    def parts(self) -> Iterator[tuple[Measured, slice]]:
        """Every tensor with its regions' places in `largest` and `squares`."""
        begin = 0
        for each in self.measured:
            yield each, slice(begin, begin + each.regions.count)
            begin += each.regions.count


def survey(measured: Sequence[Measured]) -> Survey:
    """Measure tensors, at least one of them, none without elements."""
    measured = sorted(measured, key=_small)
    rows = np.cumsum([0, *(len(each.regions.of_rows) for each in measured)])
    largest, squares = np.empty((2, 2, rows[-1]))
    with np.errstate(all="ignore"):  # a sum may overflow: of a result that is far off
        single = next((n for n, each in enumerate(measured) if _small(each)), len(measured))
        for number, each in enumerate(measured[:single]):
            begin, end = rows[number : number + 2]
            parts = largest[:, begin:end], squares[:, begin:end]
            on_cpu = each.reference.device.type == "cpu"
            (_by_row if on_cpu else _at_once)(each, *parts)
            if on_cpu and np.isnan(parts[0]).any():
                _at_once(each, *parts)
        if single < len(measured):
            _together(measured[single:], largest[:, rows[single] :], squares[:, rows[single] :])
        numbers, first = [], 0
        for each in measured:
            numbers.append(each.regions.of_rows + first)
            first += each.regions.count
        region = np.concatenate(numbers)
        farthest, sums = np.zeros((2, first)), np.empty((2, first))
        for result in range(2):
            np.maximum.at(farthest[result], region, largest[result])
            sums[result] = np.bincount(region, squares[result], first)
    return Survey(tuple(measured), farthest, sums)


def _small(each: Measured) -> bool:
    """Whether a CPU had better measure it together with others."""
    return each.reference.device.type == "cpu" and each.reference.numel() < PIECE


def _together(measured: Sequence[Measured], largest: np.ndarray, squares: np.ndarray) -> None:
    """Writes the largest distance and the sum of squares of every row, tensor by tensor."""
    values = torch.empty(3, sum(each.reference.numel() for each in measured), dtype=torch.float64)
    for place, tensors in enumerate(
        zip(*((each.got, each.low, each.reference) for each in measured), strict=True)
    ):
        # Into a buffer of float64 each is converted by itself, integers exactly.
        torch.cat([_flat(tensor) for tensor in tensors], out=values[place])
    begins, done = [], 0
    for each in measured:
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


def _by_row(each: Measured, largest: np.ndarray, squares: np.ndarray) -> None:
    """The same for one tensor on a CPU, in pieces that stay in its cache."""
    width, reference = each.regions.width, each.reference.reshape(-1, each.regions.width)
    results = [result.detach().reshape(-1, width) for result in (each.got, each.low)]
    far, norm = torch.from_numpy(largest), torch.from_numpy(squares)
    step = max(1, PIECE // width)
    scratch = reference.new_empty(2, step, width)
    for begin in range(0, len(reference), step):
        piece = slice(begin, begin + step)
        expected = reference[piece]
        error = scratch[:, : len(expected)]
        for place, result in zip(error.unbind(), results, strict=True):
            part = result[piece]
            # From float16, PyTorch makes float64 one by one, but float32 eight at a time.
            place.copy_(part.float() if part.dtype == torch.float16 else part)
        torch.sub(error, expected, out=error).abs_()
        torch.amax(error, 2, out=far[:, piece])
        torch.linalg.vector_norm(error, dim=2, out=norm[:, piece])
    norm.square_()


def _at_once(each: Measured, largest: np.ndarray, squares: np.ndarray) -> None:
    """The same for one tensor, in few operations on whatever device it is."""
    results = torch.stack([each.got.detach().double(), each.low.detach().double()])
    error = (results - each.reference).abs_()
    rows = error.masked_fill_(_same(results, each.reference), 0.0).view(2, -1, each.regions.width)
    largest[:], squares[:] = torch.stack((rows.amax(2), rows.square().sum(2))).cpu().numpy()


def _same(results: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (results == reference) | (results.isnan() & reference.isnan())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).detach()
    return flat.double() if flat.dtype.itemsize == 1 else flat  # `cat` takes no float8
