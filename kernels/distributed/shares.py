"""How rows are shared among ranks: as evenly as they go, the first ranks one row more."""

__all__ = ["share", "shares"]


def share(total: int, world: int, rank: int) -> tuple[int, int]:
    """Rows `begin` to `end` of `total` are those of `rank`, as `torch.tensor_split` cuts.

    >>> [share(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    base, extra = divmod(total, world)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


def shares(total: int, world: int) -> list[tuple[int, int]]:
    """Those of all ranks."""
    return [share(total, world, rank) for rank in range(world)]
