"""Which rank owns which rows of a sequence that is split over the ranks of a group.

A sequence of any length is cut into chunks, as `torch.tensor_split` cuts: of n chunks the first
``length % n`` have one row more than the others, and a short sequence leaves the last ones empty.

==========  =======  ==========================================  =================================
order       chunks   owner of chunk c                            why
==========  =======  ==========================================  =================================
contiguous  W        rank c                                      neighbours stay together
zigzag      2 W      rank c if c < W else rank 2 W - 1 - c       causal work is the same everywhere
==========  =======  ==========================================  =================================

(Zigzag, or head-tail: a rank has one chunk from the front and one from the back.) A rank keeps its
chunks in ascending order. Of packed sequences each is cut by itself, and a rank's rows of one
sequence stand before its rows of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tlmatrix_kernels.distributed.partition import row_range

__all__ = ["ORDERS", "Chunk", "Sharding"]

ORDERS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Chunk:
    """Rows of one sequence that one rank owns.

    ``position`` is where in the whole sequence they begin, ``row`` where in the memory at hand.
    """

    index: int
    position: int
    row: int
    length: int

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.position + self.length


@dataclass(frozen=True)
class Sharding:
    """How sequences are split over `world` ranks."""

    order: str
    world: int

    @property
    def chunks(self) -> int:
        """How many chunks a sequence is cut into."""
        return 2 * self.world if self.order == "zigzag" else self.world

    def owner(self, chunk: int) -> int:
        """The rank that has the chunk."""
        return chunk if chunk < self.world else 2 * self.world - 1 - chunk

    def owned(self, rank: int) -> tuple[int, ...]:
        """The chunks of the rank, ascending."""
        return (rank, 2 * self.world - 1 - rank) if self.order == "zigzag" else (rank,)

    def start(self, length: int, chunk: int) -> int:
        """The position at which the chunk of a sequence of this length begins."""
        return row_range(length, self.chunks, chunk)[0]

    def size(self, length: int, chunk: int) -> int:
        """How many rows the chunk has."""
        begin, end = row_range(length, self.chunks, chunk)
        return end - begin

    def rows(self, length: int, rank: int) -> int:
        """How many rows of a sequence of this length the rank has."""
        return sum(self.size(length, chunk) for chunk in self.owned(rank))

    def total(self, lengths: Sequence[int], rank: int) -> int:
        """How many rows of all the sequences the rank has."""
        return sum(self.rows(length, rank) for length in lengths)

    def shard(self, lengths: Sequence[int], rank: int) -> list[list[Chunk]]:
        """The chunks of the rank, a list for each sequence; `row` counts in the rank's memory."""
        found, row = [], 0
        for length in lengths:
            chunks = []
            for index in self.owned(rank):
                size = self.size(length, index)
                chunks.append(Chunk(index, self.start(length, index), row, size))
                row += size
            found.append(chunks)
        return found

    def positions(self, lengths: Sequence[int], rank: int) -> torch.Tensor:
        """Where the rank's rows stand among those of the whole batch: int64, in its own order."""
        found, before = [torch.empty(0, dtype=torch.int64)], 0
        for length, chunks in zip(lengths, self.shard(lengths, rank), strict=True):
            found += [torch.arange(before + chunk.position, before + chunk.end) for chunk in chunks]
            before += length
        return torch.cat(found)
