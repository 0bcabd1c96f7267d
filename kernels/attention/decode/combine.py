"""The second pass of decoding: parts of the attention of a head, put together.

Part i saw some of the keys: it is out_i with lse_i, the logarithm of its softmax denominator. With

    lse = log(sum_i exp(lse_i)),    out = sum_i exp(lse_i - lse) out_i

the whole follows. A sink is one more term exp(sink) of the sum, which has no value. A part that
saw no key has lse_i = -inf and weight 0, and is not read; where no part saw any, out is 0 and lse
-inf (or the sink), and -inf minus -inf is never taken.

Parts are added in an order that depends on their number alone: the same parts, the same bits.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.decode.tiles import (
    COMBINE_COLUMNS,
    COMBINE_PARTS,
    COMBINE_THREADS,
)

__all__ = ["combine", "combine_with_sink"]


@T.macro
def _combine(parts, lse_parts, out, lse, sink_of, sequence, head, column, max_splits):
    """The columns from `column` on of one head; `sink_of` is its sink, or -inf."""
    lses = T.alloc_fragment([max_splits], "float32")
    top = T.alloc_fragment([1], "float32")
    total = T.alloc_fragment([1], "float32")
    weights = T.alloc_shared([max_splits], "float32")
    whole = T.alloc_shared([1], "float32")
    tally = T.alloc_fragment([COMBINE_PARTS, COMBINE_COLUMNS], "float32")
    mixed = T.alloc_fragment([COMBINE_COLUMNS], "float32")

    splits = parts.shape[0]
    for i in T.Parallel(max_splits):
        lses[i] = T.if_then_else(i < splits, lse_parts[i, sequence, head], -T.infinity("float32"))
    T.reduce_max(lses, top, dim=0)
    for i in T.Parallel(1):
        top[i] = T.max(top[i], sink_of)
        # Where nothing is seen any finite number will do.
        top[i] = T.if_then_else(top[i] == -T.infinity("float32"), 0.0, top[i])
    for i in T.Parallel(max_splits):
        lses[i] = T.exp(lses[i] - top[0])
    T.reduce_sum(lses, total, dim=0)
    for i in T.Parallel(1):
        total[i] += T.exp(sink_of - top[i])
    for i in T.Parallel(max_splits):
        weights[i] = T.if_then_else(total[0] > 0.0, lses[i] / total[0], 0.0)
    for i in T.Parallel(1):
        whole[i] = T.if_then_else(total[i] > 0.0, top[i] + T.log(total[i]), -T.infinity("float32"))
    T.clear(tally)
    for step in T.serial(T.ceildiv(splits, COMBINE_PARTS)):
        for i, d in T.Parallel(COMBINE_PARTS, COMBINE_COLUMNS):
            part = step * COMBINE_PARTS + i
            tally[i, d] += weights[part] * T.if_then_else(
                T.And(part < splits, weights[part] > 0.0),
                parts[part, sequence, head, column + d],
                0.0,
            )
    T.reduce_sum(tally, mixed, dim=0)
    for d in T.Parallel(COMBINE_COLUMNS):
        out[sequence, head, column + d] = mixed[d]
    if column == 0:
        for i in T.Parallel(1):
            lse[sequence, head] = whole[i]


@tilelang.jit
def combine(dtype, head_dim_v, max_splits):
    """Build the kernel: parts and their lse to out and lse, for at most `max_splits` parts."""
    splits, batch, heads = T.dynamic("splits, batch, heads")

    @T.prim_func
    def decode_combine(
        parts: T.Tensor((splits, batch, heads, head_dim_v), "float32"),
        lse_parts: T.Tensor((splits, batch, heads), "float32"),
        out: T.Tensor((batch, heads, head_dim_v), dtype),
        lse: T.Tensor((batch, heads), "float32"),
    ):
        columns = T.ceildiv(head_dim_v, COMBINE_COLUMNS)
        with T.Kernel(columns, heads, batch, threads=COMBINE_THREADS) as (tile, head, sequence):
            _combine(
                parts, lse_parts, out, lse, -T.infinity("float32"), sequence, head,
                tile * COMBINE_COLUMNS, max_splits,
            )  # fmt: skip

    return decode_combine


@tilelang.jit
def combine_with_sink(dtype, head_dim_v, max_splits):
    """Build the kernel: the same, with one sink a head."""
    splits, batch, heads = T.dynamic("splits, batch, heads")

    @T.prim_func
    def decode_combine_with_sink(
        parts: T.Tensor((splits, batch, heads, head_dim_v), "float32"),
        lse_parts: T.Tensor((splits, batch, heads), "float32"),
        sink: T.Tensor((heads,), "float32"),
        out: T.Tensor((batch, heads, head_dim_v), dtype),
        lse: T.Tensor((batch, heads), "float32"),
    ):
        columns = T.ceildiv(head_dim_v, COMBINE_COLUMNS)
        with T.Kernel(columns, heads, batch, threads=COMBINE_THREADS) as (tile, head, sequence):
            _combine(
                parts, lse_parts, out, lse, sink[head], sequence, head,
                tile * COMBINE_COLUMNS, max_splits,
            )  # fmt: skip

    return decode_combine_with_sink
