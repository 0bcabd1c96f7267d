"""Atomic operations on single cells: contention, memory orders and returned previous values.

The kernel runs `count` operations on `cells`; operation i works on cell ``i % len(cells)``. Their
order is not determined, so neither is which operation returns which previous value. Determined are:

==========  =======================  ==========================================================
operation   cells                    found: previous values of a cell, reduced
==========  =======================  ==========================================================
add         start + operations       all, sorted: start, start + 1, ... (each operation adds 1)
max         maximum with start       the minimum, which is start
min         minimum with start       the maximum, which is start
or          bitwise or with start    empty: the operation returns nothing
load        start                    the loaded value of each operation, which is start
store       the stored value         empty
==========  =======================  ==========================================================

`found` is empty if previous values are not requested.

x and found are [count], cells [cells], all contiguous. A block has 64 threads with one operation
each, so that operations contend within a warp, between the two warps of a block and between blocks.
`count` is symbolic; the number of cells is a compile-time constant.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.dtypes import dtype_name

OPERATIONS = ("add", "max", "min", "or", "load", "store")
ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")
ACCEPTED = {
    "load": ("relaxed", "consume", "acquire", "seq_cst"),
    "store": ("relaxed", "release", "seq_cst"),
}
"""Accepted memory orders; the other operations accept all of `ORDERS`, and None."""
DTYPES = (torch.int32, torch.float32, torch.float16, torch.bfloat16)
THREADS = 64


@tilelang.jit
def operate(operation, dtype, memory_order, cells_count):
    """Build the kernel of operations without a return value."""
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
    """Build the kernel of operations that return the previous value."""
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
    """Run one atomic operation for each element of x, on cell ``i % len(start)``.

    Args:
        x: [count], the operands. `add` ignores them and adds 1; `store` to cell c stores x[c].
        start: [cells], the initial values, in the dtype of x.
        operation: add, max, min, or (int32 only), load or store.
        memory_order: relaxed, consume, acquire, release, acq_rel or seq_cst, if TileLang accepts it
            for the operation; None for TileLang's default (not for load and store).
        previous: whether operations return the previous value; a load always does.

    Returns:
        cells [cells], and the determined part of the previous values (see the module): of `add`
        [count], sorted within each cell, cell after cell; of `max` and `min` [min(cells, count)];
        of `load` [count]; otherwise [0].

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
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
        raise ValueError(f"x must be int32 for operation or, got {x.dtype}")
    if previous and operation in ("or", "store"):
        raise ValueError(f"previous must be False for operation {operation}, got True")
