"""Reduction of the parts of all ranks for this rank's rows, in float32 and in ring order.

    parts [slots, held, N]   the parts of the other ranks, in the order of `ring`; the rows from
                             `first` on are added
    own   [rows, N]          this rank's part, added last
    bias  [N]                float32, added once, optional
    out   [rows, N]

The sum is rounded once. The order is that in which the parts of a GEMM complete (see
`gemm_reduce_scatter`) and depends on the rank alone, so the result is bitwise reproducible.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.dtypes import dtype_name

COLUMNS = 1024
"""Columns per block: 8 elements per thread, 16 bytes of a 16-bit part."""
THREADS = 128
STEP = 8
"""With `whole_rows`, row lengths are multiples of it, for 16-byte loads."""


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
            T.assume(first + row < held)  # without it, a guard would serialize the loads
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
    """The other ranks in the order in which their parts are added: rank - 1, rank - 2, ..."""
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
        parts: [slots, held, n] with held >= first + rows, contiguous; float16, bfloat16 or float32.
        own: [rows, n], contiguous, in the dtype of `parts`.
        bias: [n] float32, or None.
        out: [rows, n], contiguous, the output.
        first: the row of `parts` that is added to row 0 of `own`.
    """
    if out.numel() == 0:
        return
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (parts, own, out))
    whole_rows = out.shape[1] % STEP == 0 and aligned
    offset = out.new_empty(0, dtype=torch.float32) if bias is None else bias
    options = (dtype_name(own.dtype), dtype_name(out.dtype), bias is not None, whole_rows)
    ring_sum(*options)(parts, own, offset, out, first)
