"""Partition of rows over ranks, as by `torch.tensor_split`: the first ranks have one row more."""


def row_range(total: int, world: int, rank: int) -> tuple[int, int]:
    """The rows [begin, end) of `rank` among `total` rows.

    >>> [row_range(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    base, extra = divmod(total, world)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


def row_ranges(total: int, world: int) -> list[tuple[int, int]]:
    """The row ranges of all ranks."""
    return [row_range(total, world, rank) for rank in range(world)]
