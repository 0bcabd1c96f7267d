"""The sum of what ranks have for one of them, in float32 and in the order of the ring.

    parts [slots, held, N]   what came from the others, in the order of `ring`; the rows from
                             `first` on are added
    own   [rows, N]          what this rank has itself, added last
    bias  [N]                float32, added once, where there is one
    out   [rows, N]

A sum is rounded once. The order is that in which a GEMM's parts are ready (see
`gemm_reduce_scatter`), and depends on the rank alone, so equal inputs make equal bits.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.dtypes import dtype_name

__all__ = ["add_in_ring_order", "ring", "ring_sum"]

COLUMNS = 1024
"""Of a row that one block adds: 8 elements a thread, 16 bytes of a 16-bit part."""
THREADS = 128
STEP = 8
"""Elements that a row is a multiple of with `whole_rows`, so that loads are of 16 bytes."""


@tilelang.jit
def ring_sum(dtype: str, out_dtype: str, bias: bool, whole_rows: bool):
    """Build the kernel, called with (parts, own, offset, out, first); `offset` is the bias."""
    slots, held, rows = T.dynamic("slots"), T.dynamic("held"), T.dynamic("rows")
    N = T.dynamic("n_by_8") * STEP if whole_rows else T.dynamic("n")
    biases = T.dynamic("biases")

    @T.prim_func
    def ring_reduction(
        parts: T.Tensor([slots, held, N], dtype),
        own: T.Tensor([rows, N], dtype),
        offset: T.Tensor([biases], "float32"),
        out: T.Tensor([rows, N], out_dtype),
        first: T.int32,
    ):
        with T.Kernel(rows, T.ceildiv(N, COLUMNS), threads=THREADS) as (row, block):
            T.assume(first >= 0)
            T.assume(first + row < held)  # or a guard would keep loads from being in flight
            acc = T.alloc_fragment([COLUMNS], "float32")
            begin = block * COLUMNS
            T.clear(acc)
            for slot in T.serial(slots):
                for i in T.Parallel(COLUMNS):
                    if begin + i < N:
                        acc[i] += T.cast(parts[slot, first + row, begin + i], "float32")
            for i in T.Parallel(COLUMNS):
                if begin + i < N:
                    acc[i] += T.cast(own[row, begin + i], "float32")
            if bias:
                for i in T.Parallel(COLUMNS):
                    if begin + i < N:
                        acc[i] += offset[begin + i]
            for i in T.Parallel(COLUMNS):
                if begin + i < N:
                    out[row, begin + i] = acc[i]

    return ring_reduction


def ring(rank: int, world: int) -> list[int]:
    """The other ranks in the order in which their parts are added: the rank before, and so on."""
    return [(rank - step) % world for step in range(1, world)]


def add_in_ring_order(
    parts: torch.Tensor,
    own: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    first: int = 0,
) -> None:
    """Enqueue `out` = the sum of `parts`, `own` and `bias` on the current stream.

    Args:
        parts: [slots, rows or more, n], contiguous; float16, bfloat16 or float32.
        own: [rows, n], contiguous, of the dtype of `parts`.
        bias: [n] float32, or None.
        out: [rows, n], contiguous, what is written.
        first: of the rows of `parts`, that for the first of `own`.
    """
    if out.numel() == 0:
        return
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (parts, own, out))
    whole_rows = out.shape[1] % STEP == 0 and aligned
    offset = out.new_empty(0, dtype=torch.float32) if bias is None else bias
    options = (dtype_name(own.dtype), dtype_name(out.dtype), bias is not None, whole_rows)
    ring_sum(*options)(parts, own, offset, out, first)
