"""Clusters of blocks: a barrier of all their threads, and the mbarriers of each block."""

from __future__ import annotations

from typing import Any

from .barriers import Mbarriers, ThreadBarrier


class ClusterMbarriers(Mbarriers):
    """An allocation of mbarriers of one block, at which others of its cluster may arrive."""

    def __init__(self, name: str, counts: tuple[int, ...]) -> None:
        super().__init__(name, counts)
        self.blocks: list[ClusterMbarriers] = []

    def of_block(self, rank: int) -> ClusterMbarriers:
        """The same allocation of a block of the cluster."""
        if not 0 <= rank < len(self.blocks):
            raise IndexError(f"block {rank} of a cluster, but it has {len(self.blocks)} blocks")
        return self.blocks[rank]


class Cluster:
    """The blocks of a cluster, which run at the same time.

    Attributes:
        size: how many blocks there are.
        joined: how many have started.
        barrier: of all their threads.
    """

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.joined = 0
        self.barrier = ThreadBarrier("T.cluster_sync", size * threads)
        self._mbarriers: dict[str, list[ClusterMbarriers]] = {}
        self._arrays: dict[tuple[str, int], Any] = {}

    def mbarriers(self, name: str, counts: tuple[int, ...], rank: int) -> ClusterMbarriers:
        """The mbarriers of a block; those of its peers exist before they start."""
        blocks = self._mbarriers.get(name)
        if blocks is None:
            blocks = [ClusterMbarriers(name, counts) for _ in range(self.size)]
            for each in blocks:
                each.blocks = blocks
            self._mbarriers[name] = blocks
        return blocks[rank]

    def share(self, name: str, rank: int, array: Any) -> None:
        """Let the other blocks know an array of a block."""
        self._arrays[name, rank] = array

    def array(self, name: str, rank: int) -> Any:
        """An array of a block.

        Raises:
            IndexError: for a block that the cluster does not have.
        """
        if not 0 <= rank < self.size:
            raise IndexError(f"block {rank} of a cluster, but it has {self.size} blocks")
        return self._arrays[name, rank]
