"""Which elements of a dimension belong to which rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Split", "UnevenError", "chunks_of", "owners", "parts"]


@dataclass(frozen=True)
class Split:
    """Whose elements of one tensor are.

    `rows[r]` are the indices along `axis` that rank r has, in its order. With `own` the dimension
    counts ranks, and is none of what a rank has.
    """

    axis: int
    rows: tuple[torch.Tensor, ...]
    own: bool = False

    def of(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """What a rank has of a whole tensor: a copy.

        Of bad input that has another length than what is split, every rank has all.
        """
        length = sum(len(rows) for rows in self.rows)
        if self.axis >= tensor.ndim or tensor.shape[self.axis] != length:
            return tensor.clone()
        if self.own:
            return tensor.select(self.axis, rank).clone()
        return _bits(tensor).index_select(self.axis, self._on(tensor, rank)).view(tensor.dtype)

    def shape(self, whole: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """The shape of a rank's part of a tensor of shape `whole`."""
        before, after = whole[: self.axis], whole[self.axis + 1 :]
        return (*before, *after) if self.own else (*before, len(self.rows[rank]), *after)

    def place(self, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The rank that has an element of the whole, and the element's index in its part."""
        before, at, after = index[: self.axis], index[self.axis], index[self.axis + 1 :]
        for rank, rows in enumerate(self.rows):
            found = torch.nonzero(rows == at).flatten()
            if len(found):
                mine = () if self.own else (int(found[0]),)
                return rank, (*before, *mine, *after)
        raise IndexError(f"no rank has {at} of dimension {self.axis}")

    def put(self, whole: torch.Tensor, part: torch.Tensor, rank: int) -> None:
        """Write a rank's part, of the right shape, to its place."""
        if self.own:
            part = part.unsqueeze(self.axis)
        _bits(whole).index_copy_(self.axis, self._on(whole, rank), _bits(part.contiguous()))

    def _on(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return self.rows[rank].to(tensor.device)

    def owner(self, size: int) -> tuple[int, ...]:
        """The rank that has each index along the dimension."""
        found = torch.zeros(size, dtype=torch.int64)
        for rank, rows in enumerate(self.rows):
            found[rows] = rank
        return tuple(found.tolist())


class UnevenError(ValueError):
    """A length that ranks cannot share evenly, where nobody said how else."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.count = count
        super().__init__(f"{length} is not divisible by {count}")


def parts(length: int, count: int, uneven: str | None) -> list[range]:
    """`count` parts of `range(length)`, in order.

    uneven: `balanced` gives the first parts one more, `ceil` gives every part
        ceil(length / count), the last ones less or nothing.

    Raises:
        UnevenError: `count` does not divide `length`, and `uneven` is None.
    """
    least, more = divmod(length, count)
    if more and uneven is None:
        raise UnevenError(length, count)
    if uneven == "ceil":
        most = -(-length // count)
        return [range(min(k * most, length), min((k + 1) * most, length)) for k in range(count)]
    ends = list(accumulate((least + (k < more) for k in range(count)), initial=0))
    return [range(begin, end) for begin, end in pairwise(ends)]


def chunks_of(rank: int, world: int, order: str) -> list[int]:
    """The numbers of a rank's chunks: of `world` where contiguous, of 2 `world` in a zigzag."""
    return [rank] if order == "contiguous" else [rank, 2 * world - 1 - rank]


def owners(
    lengths: Sequence[int], world: int, order: str = "contiguous", uneven: str | None = None
) -> list[list[range]]:
    """By rank: the rows it has of sequences of these lengths, packed one after the other.

    Every sequence is split by itself. Raises UnevenError as `parts` does.
    """
    count = world if order == "contiguous" else 2 * world
    found: list[list[range]] = [[] for _ in range(world)]
    begin = 0
    for length in lengths:
        chunks = parts(length, count, uneven)
        for rank, rows in enumerate(found):
            for number in chunks_of(rank, world, order):
                chunk = chunks[number]
                rows.append(range(begin + chunk.start, begin + chunk.stop))
        begin += length
    return found


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers, where PyTorch cannot index its dtype."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
