"""The partition of sequences over the ranks of a group.

A sequence is cut into chunks as by `torch.tensor_split`: the first ``length % n`` of n chunks have
one more row than the others, and the last chunks of a short sequence are empty.

==========  =======  ==========================================  =================================
order       chunks   owner of chunk c                            property
==========  =======  ==========================================  =================================
contiguous  W        rank c                                      neighbours stay together
zigzag      2 W      rank c if c < W else rank 2 W - 1 - c       balances causal attention
==========  =======  ==========================================  =================================

(Zigzag, or head-tail: a rank has one chunk from the front and one from the back.) A rank keeps its
chunks in ascending order. Packed sequences are cut one by one, and a rank's rows of one sequence
precede its rows of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tlmatrix_kernels.distributed.partition import row_range

ORDERS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Chunk:
    """Rows of one sequence that one rank owns.

    ``position`` is their first position in the whole sequence, ``row`` their first row in memory.
    """

    index: int
    position: int
    row: int
    length: int

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.position + self.length


@dataclass(frozen=True)
class Sharding:
    """The partition of sequences over `world` ranks."""

    order: str
    world: int

    @property
    def chunks(self) -> int:
        """The number of chunks of a sequence."""
        return 2 * self.world if self.order == "zigzag" else self.world

    def owner(self, chunk: int) -> int:
        """The rank that owns the chunk."""
        return chunk if chunk < self.world else 2 * self.world - 1 - chunk

    def owned(self, rank: int) -> tuple[int, ...]:
        """The chunks of the rank, ascending."""
        return (rank, 2 * self.world - 1 - rank) if self.order == "zigzag" else (rank,)

    def start(self, length: int, chunk: int) -> int:
        """The position at which the chunk of a sequence of this length starts."""
        return row_range(length, self.chunks, chunk)[0]

    def size(self, length: int, chunk: int) -> int:
        """The number of rows of the chunk."""
        begin, end = row_range(length, self.chunks, chunk)
        return end - begin

    def rows(self, length: int, rank: int) -> int:
        """The number of rows of a sequence of this length on the rank."""
        return sum(self.size(length, chunk) for chunk in self.owned(rank))

    def total(self, lengths: Sequence[int], rank: int) -> int:
        """The number of rows of all the sequences on the rank."""
        return sum(self.rows(length, rank) for length in lengths)

    def shard(self, lengths: Sequence[int], rank: int) -> list[list[Chunk]]:
        """The chunks of the rank for each sequence; `row` counts in the rank's memory."""
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
        """The row indices of the rank's rows in the whole batch: int64, in local order."""
        found, before = [torch.empty(0, dtype=torch.int64)], 0
        for length, chunks in zip(lengths, self.shard(lengths, rank), strict=True):
            found += [torch.arange(before + chunk.position, before + chunk.end) for chunk in chunks]
            before += length
        return torch.cat(found)
