"""Atomics on single cells: how many meet at one, in which memory order, and what they found there.

`count` operations are done on `cells`, operation i on cell ``i % len(cells)``. Their order is not
determined, and so neither is which of them finds which previous value. What is determined:

==========  =========================  ========================================================
operation   cells                      found, of what the operations of a cell found there
==========  =========================  ========================================================
add         start + number of them     all of it, sorted: start, start + 1, ... (each adds 1)
max         largest, start included    the smallest: start, which the first of them found
min         smallest, start included   the largest: start
or          all bits                   nothing: the operation returns nothing
load        start                      what each loaded: start
store       the one value stored       nothing
==========  =========================  ========================================================

Operations without previous values find nothing, either; then `found` is empty.

x and found are [count], cells [cells], all as usual in memory. A block is 64 threads with one
operation each: few, so that operations meet within a warp, between the two warps of a block and
between blocks. Their count is symbolic; the number of cells is part of the kernel, as a modulus.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.dtypes import dtype_name

__all__ = ["atomic_cells"]

OPERATIONS = ("add", "max", "min", "or", "load", "store")
ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")
ACCEPTED = {
    "load": ("relaxed", "consume", "acquire", "seq_cst"),
    "store": ("relaxed", "release", "seq_cst"),
}
"""Of the others all, and None."""
DTYPES = (torch.int32, torch.float32, torch.float16, torch.bfloat16)
THREADS = 64


@tilelang.jit
def operate(operation, dtype, memory_order, cells_count):
    """Build the kernel of operations that return nothing."""
    count = T.dynamic("count")

    @T.prim_func
    def atomic_operate(x: T.Tensor((count,), dtype), cells: T.Tensor((cells_count,), dtype)):
        with T.Kernel(T.ceildiv(count, THREADS), threads=THREADS) as block:
            for lane in T.Parallel(THREADS):
                i = block * THREADS + lane
                if i < count:
                    if operation == "add":
                        T.atomic_add(cells[i % cells_count], T.cast(1, dtype), memory_order)
                    elif operation == "max":
                        T.atomic_max(cells[i % cells_count], x[i], memory_order)
                    elif operation == "min":
                        T.atomic_min(cells[i % cells_count], x[i], memory_order)
                    elif operation == "or":
                        T.atomic_or(cells[i % cells_count], x[i], memory_order)
                    else:
                        T.atomic_store(cells[i % cells_count], x[i % cells_count], memory_order)

    return atomic_operate


@tilelang.jit
def operate_and_find(operation, dtype, memory_order, cells_count):
    """Build the kernel of operations that return what they found."""
    count = T.dynamic("count")

    @T.prim_func
    def atomic_operate_and_find(
        x: T.Tensor((count,), dtype),
        cells: T.Tensor((cells_count,), dtype),
        found: T.Tensor((count,), dtype),
    ):
        with T.Kernel(T.ceildiv(count, THREADS), threads=THREADS) as block:
            for lane in T.Parallel(THREADS):
                i = block * THREADS + lane
                if i < count:
                    if operation == "add":
                        found[i] = T.atomic_add(
                            cells[i % cells_count], T.cast(1, dtype), memory_order, return_prev=True
                        )
                    elif operation == "max":
                        found[i] = T.atomic_max(
                            cells[i % cells_count], x[i], memory_order, return_prev=True
                        )
                    elif operation == "min":
                        found[i] = T.atomic_min(
                            cells[i % cells_count], x[i], memory_order, return_prev=True
                        )
                    else:
                        found[i] = T.atomic_load(cells[i % cells_count], memory_order)

    return atomic_operate_and_find


def atomic_cells(
    x: torch.Tensor,
    start: torch.Tensor,
    *,
    operation: str = "add",
    memory_order: str | None = None,
    previous: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do one operation for each element of x, on the cell of its number modulo their number.

    Args:
        x: [count], the operands; `add` adds 1 instead, `store` stores those of the first cells.
        start: [cells], what the cells hold before, of the dtype of x.
        operation: add, max, min, or (int32), load or store.
        memory_order: relaxed, consume, acquire, release, acq_rel or seq_cst, as far as TileLang
            accepts it for the operation; None for its default, not for load and store.
        previous: whether operations return what they found; a load always does.

    Returns:
        cells [cells], and what is determined of what was found (see the module): of `add` [count],
        each cell's sorted and the cells in turn; of `max` and `min` one a cell, of those with an
        operation; of `load` [count]; else [0].

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
    """
    _check(x, start, operation, memory_order, previous)
    cells = start.clone()
    found = torch.empty_like(x) if previous or operation == "load" else x.new_empty(0)
    if x.numel():
        dtype = dtype_name(x.dtype)
        static = (operation, dtype, memory_order, len(cells))
        if found.numel():
            operate_and_find(*static)(x.contiguous(), cells, found)
        else:
            operate(*static)(x.contiguous(), cells)
    return cells, _determined(operation, found, len(cells))


def _determined(operation: str, found: torch.Tensor, cells: int) -> torch.Tensor:
    if not found.numel() or operation == "load":
        return found
    of_cells = [found[cell::cells] for cell in range(min(cells, len(found)))]
    if operation == "add":
        return torch.cat([each.sort().values for each in of_cells])
    return torch.stack([each.min() if operation == "max" else each.max() for each in of_cells])


def _check(x, start, operation, memory_order, previous) -> None:
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be int32, float32, float16 or bfloat16, got {x.dtype}")
    if start.dtype != x.dtype:
        raise ValueError(f"start must have the dtype of x, {x.dtype}, got {start.dtype}")
    if not start.numel():
        raise ValueError("start must have at least one cell, got 0")
    if operation not in OPERATIONS:
        raise ValueError(f"operation must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    accepted = ACCEPTED.get(operation, (None, *ORDERS))
    if memory_order not in accepted:
        raise ValueError(
            f"memory_order of {operation} must be one of {', '.join(map(str, accepted))}, "
            f"got {memory_order!r}"
        )
    if operation == "or" and x.dtype != torch.int32:
        raise ValueError(f"x must be int32 where operation is or, got {x.dtype}")
    if previous and operation in ("or", "store"):
        raise ValueError(f"previous must be False where operation is {operation}")
