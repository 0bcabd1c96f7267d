"""Which elements of a dimension belong to which rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.tensors import indexable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Split:
    """The split of one tensor over ranks.

    Attributes:
        axis: the dimension that is split.
        rows: for each rank its indices along `axis`, in the order of its shard.
        own: whether the dimension counts ranks, so that shards lack it.
    """

    axis: int
    rows: tuple[torch.Tensor, ...]
    own: bool = False

    def of(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's shard of a whole tensor: a copy.

        A tensor of another length (an invalid input) goes whole to every rank.
        """
        length = sum(len(rows) for rows in self.rows)
        if self.axis >= tensor.ndim or tensor.shape[self.axis] != length:
            return tensor.clone()
        if self.own:
            return tensor.select(self.axis, rank).clone()
        return indexable(tensor).index_select(self.axis, self._on(tensor, rank)).view(tensor.dtype)

    def shape(self, whole: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """The shape of a rank's shard of a tensor of shape `whole`."""
        before, after = whole[: self.axis], whole[self.axis + 1 :]
        return (*before, *after) if self.own else (*before, len(self.rows[rank]), *after)

    def locate(self, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The rank that owns an element of the whole, and the element's index in its shard."""
        before, at, after = index[: self.axis], index[self.axis], index[self.axis + 1 :]
        for rank, rows in enumerate(self.rows):
            found = torch.nonzero(rows == at).flatten()
            if len(found):
                mine = () if self.own else (int(found[0]),)
                return rank, (*before, *mine, *after)
        raise IndexError(f"no rank has index {at} of dimension {self.axis}")

    def put(self, whole: torch.Tensor, part: torch.Tensor, rank: int) -> None:
        """Write a rank's shard, of the right shape, into the whole."""
        if self.own:
            part = part.unsqueeze(self.axis)
        indexable(whole).index_copy_(self.axis, self._on(whole, rank), indexable(part.contiguous()))

    def _on(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return self.rows[rank].to(tensor.device)

    def owner(self, size: int) -> tuple[int, ...]:
        """The rank that owns each index along the dimension."""
        found = torch.zeros(size, dtype=torch.int64)
        for rank, rows in enumerate(self.rows):
            found[rows] = rank
        return tuple(found.tolist())


class UnevenError(ValueError):
    """A length that ranks cannot share evenly, with no rule for uneven lengths."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.count = count
        super().__init__(f"{length} is not divisible by {count}")


def parts(length: int, count: int, uneven: str | None) -> list[range]:
    """Split `range(length)` into `count` ranges, in order.

    With `uneven` "balanced" the first ranges have one more, with "ceil" each has
    ceil(length / count) and the last ones less or nothing.

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
    """Indices of a rank's chunks, of `world` chunks if contiguous, of 2 `world` in a zigzag."""
    return [rank] if order == "contiguous" else [rank, 2 * world - 1 - rank]


def owners(
    lengths: Sequence[int], world: int, order: str = "contiguous", uneven: str | None = None
) -> list[list[range]]:
    """For each rank its rows of packed sequences with these lengths; each sequence is split alone.

    Raises:
        UnevenError: see `parts`.
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
