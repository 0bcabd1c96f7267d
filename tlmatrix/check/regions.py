"""Sums and maxima over the regions of a tensor (a head of a sequence), without a loop over them.

A uniform small error of one head must not drown in a large tensor, so every distance is taken
per region; a batch of a thousand sequences has many thousand regions, so reductions are
vectorised: dimensions inside a region are reduced at once, and only a packed dimension, whose
regions have lengths of their own, is added up by segment.

`distances` is what every comparison that passes costs, so on a CPU it goes a few rows at a time:
temporaries that stay in the cache cost a third of those of a tensor's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.problem.model import Dim

__all__ = ["Regions"]

_PIECE = 2**14
"""Elements that a CPU takes at once: 128 KiB of float64, which its second cache holds."""


@dataclass(frozen=True)
class _Packed:
    """A packed dim: the region of each index on the device, and how many indices each has."""

    dim: Dim
    index: torch.Tensor
    sizes: torch.Tensor


def _packed(dim: Dim, device: torch.device) -> _Packed:
    assert dim.region is not None
    index = torch.tensor(dim.region, dtype=torch.int64)
    if index.shape != (dim.size,):
        raise ValueError(f"dim {dim.name} has {dim.size} entries and {index.numel()} regions")
    number = max(int(index.max()) + 1 if dim.size else 1, len(dim.starts or ()))
    sizes = torch.bincount(index, minlength=number).double()
    return _Packed(dim, index.to(device), sizes)


class Regions:
    """The regions of a tensor with these dims: every combination of its dims' regions.

    Reductions return one value a region, of shape `shape`: a dimension keeps one entry for each
    of its regions, and has size 1 where it lies inside a region. Several tensors of the same
    dims may be reduced at once, stacked along dimensions in front of them.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        device: torch.device,
        others: Iterable[Regions] = (),
    ) -> None:
        """The regions of `dims`; a packed dim that one of `others` has is not counted again."""
        self._packed: dict[int, _Packed] = {}
        # Axes count from the last, for there may be more in front.
        self._inside = tuple(a - len(dims) for a, dim in enumerate(dims) if dim.region is None)
        self._segments: dict[int, torch.Tensor] = {}
        shape, size = [1] * len(dims), 1
        counts: list[torch.Tensor] = []
        for axis, dim in enumerate(dims):
            if dim.region is None:
                size *= dim.size
            elif dim.region == range(dim.size):
                shape[axis] = dim.size
            else:
                known = (other._packed.get(id(dim)) for other in others)  # noqa: SLF001 - its own kind
                packed = next((each for each in known if each is not None), None)
                packed = _packed(dim, device) if packed is None else packed
                self._packed[id(dim)] = packed
                shape[axis] = len(packed.sizes)
                self._segments[axis - len(dims)] = packed.index
                row = [-1 if at == axis else 1 for at in range(len(dims))]
                counts.append(packed.sizes.reshape(row))
        elements = torch.full(shape, float(size), dtype=torch.float64)
        for sizes in counts:
            elements *= sizes
        self.elements = elements.to(device)
        """How many elements each region has."""
        inside = len(dims) > 1 and dims[-1].region is None
        self._columns = max(dims[-1].size, 1) if inside else 1
        self._divisor = self.elements.clamp_min(1)
        self._whole = max(float(elements.sum()), 1.0)

    @property
    def shape(self) -> torch.Size:
        """One entry for each region along every dimension."""
        return self.elements.shape

    def rows(self, marks: torch.Tensor) -> torch.Tensor:
        """How many rows hold elements marked with 1, about; a row is the last dimension."""
        return self.sum(marks) / self._columns

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
        return self._extreme(values, "amax")

    def _extreme(self, values: torch.Tensor, which: Literal["amax", "amin"]) -> torch.Tensor:
        if values.numel() == 0:
            return values.new_zeros(*values.shape[: values.ndim - self.elements.ndim], *self.shape)
        if self._inside:
            reduce = torch.amax if which == "amax" else torch.amin
            values = reduce(values, self._inside, keepdim=True)
        for axis, index in self._segments.items():
            shape = list(values.shape)
            shape[axis] = self.shape[axis]
            along = index.reshape(-1, *[1] * (-axis - 1))
            values = values.new_zeros(shape).scatter_reduce_(
                axis, along.expand(values.shape), values, which, include_self=which == "amax"
            )
        return values

    def smallest(self, values: torch.Tensor) -> torch.Tensor:
        """The smallest of the values, which are not negative; 0 for an empty region."""
        return self._extreme(values, "amin")

    def rms(self, values: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """The root mean square over each region; 0 for an empty one.

        Squares are written to `scratch`, where it is given; it may be `values` itself.
        """
        squares = torch.mul(values, values, out=scratch)
        return self.sum(squares).div_(self._divisor).sqrt_()

    def distances(
        self, got: torch.Tensor, reference: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Largest |got - reference| of each region, and its root mean square; 0 where empty.

        NaN where a distance is: for equal infinities too.
        """
        largest, root = self._distances((got,), reference)
        return largest[0], root[0]

    def both_distances(
        self, got: torch.Tensor, low: torch.Tensor, reference: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """`distances` of `got` and of `low`, for little more than those of one.

        Of `low`, a distance that is no finite number counts as 0.
        """
        largest, root = self._distances((got, low), reference)
        mine, its = (largest[0], root[0]), (largest[1], root[1])
        # A norm that is finite has only finite terms.
        if not bool(root[1].isfinite().all()):
            error = torch.nan_to_num(low.double() - reference, nan=0.0, posinf=0.0, neginf=0.0)
            its = self.largest(error.abs_()), self.rms(error, error)
        return mine, its

    def _distances(
        self, results: tuple[torch.Tensor, ...], reference: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`distances` of every result."""
        count = len(results)
        if self._columns == 1:
            error = torch.stack([result.detach().double() for result in results])
            error.sub_(reference).abs_()
            return self.largest(error), self.rms(error, error)
        largest, norms = _by_row(results, reference)
        rows = (count, *reference.shape[:-1], 1)
        squares = self.sum(norms.square_().view(rows))
        return self.largest(largest.view(rows)), squares.div_(self._divisor).sqrt_()

    def rms_of_all(self, per_region: torch.Tensor) -> torch.Tensor:
        """The root mean square over the tensor, from that of its regions."""
        return per_region.square().mul_(self.elements).sum().div_(self._whole).sqrt_()

    def spread(self, per_region: torch.Tensor) -> torch.Tensor:
        """Every region's value at its elements, in a shape that broadcasts over the tensor."""
        for axis, index in self._segments.items():
            per_region = per_region.index_select(axis, index)
        return per_region


def _by_row(
    results: tuple[torch.Tensor, ...], reference: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest distance and root of the sum of squares along the last dimension, row after row.

    Both [results, rows].
    """
    width, count = reference.shape[-1], len(results)
    reference = reference.reshape(-1, width)
    rows = len(reference)
    step = max(1, _PIECE // width) if reference.device.type == "cpu" else rows
    step = max(1, min(step, rows))
    largest, norms = reference.new_empty(2, count, rows)
    scratch = reference.new_empty(count, step, width)
    places = scratch.unbind()
    tensors = [result.detach().reshape(-1, width) for result in results]
    pieces = [tensor.split_with_sizes(_steps(rows, step)) for tensor in (*tensors, reference)]
    parts = (totals.split_with_sizes(_steps(rows, step), 1) for totals in (largest, norms))
    for of_largest, of_norms, expected, *got in zip(*parts, pieces[-1], *pieces[:-1], strict=True):
        if len(expected) != step:
            scratch = scratch[:, : len(expected)]
            places = scratch.unbind()
        for place, piece in zip(places, got, strict=True):
            place.copy_(piece)
        torch.sub(scratch, expected, out=scratch).abs_()
        torch.linalg.vector_norm(scratch, dim=2, out=of_norms)
        torch.amax(scratch, 2, out=of_largest)
    return largest, norms


def _steps(rows: int, step: int) -> list[int]:
    """The lengths of pieces of `step` rows, the last of what is left."""
    whole, left = divmod(rows, step)
    return [step] * whole + [left] * bool(left)
