"""The second pass of decode attention: merges the splits of a head.

Split i has out_i and lse_i, the logarithm of its softmax denominator. With

    lse = log(sum_i exp(lse_i)),    out = sum_i exp(lse_i - lse) out_i

A sink adds the term exp(sink) to the sum in lse, and nothing to out. A split with no visible key
has lse_i = -inf and weight 0, and its out_i is not read. If all splits are empty, out is 0 and lse
is -inf (or the sink); -inf - -inf is never evaluated.

The order of the additions only depends on the number of splits, so the result is bitwise
reproducible.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.decode.tiles import (
    COMBINE_COLUMNS,
    COMBINE_PARTS,
    COMBINE_THREADS,
)
from tlmatrix_kernels.parameters import absent, named


@T.macro
def _combine(parts, lse_parts, out, lse, sink_of, sequence, head, column, max_splits):
    """Merge the columns from `column` of one head; `sink_of` is its sink, or -inf."""
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
        # Without a visible key and a sink, any finite maximum will do.
        top[i] = T.if_then_else(top[i] == -T.infinity("float32"), 0.0, top[i])
    for i in T.Parallel(max_splits):
        lses[i] = T.exp(lses[i] - top[0])
    T.reduce_sum(lses, total, dim=0)
    for i in T.Parallel(1):
        total[i] += T.exp(sink_of - top[i])
    for i in T.Parallel(max_splits):
        weights[i] = T.if_then_else(total[0] == 0.0, 0.0, lses[i] / total[0])
    for i in T.Parallel(1):
        whole[i] = T.if_then_else(total[i] == 0.0, -T.infinity("float32"), top[i] + T.log(total[i]))
    T.clear(tally)
    for step in T.serial(T.ceildiv(splits, COMBINE_PARTS)):
        for i, d in T.Parallel(COMBINE_PARTS, COMBINE_COLUMNS):
            part = step * COMBINE_PARTS + i
            tally[i, d] += weights[part] * T.if_then_else(
                T.And(part < splits, weights[part] != 0.0),
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
def combine(dtype, head_dim_v, max_splits, *, with_sink=False):
    """Build the kernel: parts and lse_parts to out and lse, for at most `max_splits` splits.

    With `with_sink` it also has one sink per head.
    """
    splits, batch, heads = T.dynamic("splits, batch, heads")

    @T.prim_func
    @named("decode_combine_with_sink" if with_sink else "decode_combine")
    def combine(
        parts: T.Tensor((splits, batch, heads, head_dim_v), "float32"),
        lse_parts: T.Tensor((splits, batch, heads), "float32"),
        sink: T.Tensor((heads,), "float32") if with_sink else absent,
        out: T.Tensor((batch, heads, head_dim_v), dtype),
        lse: T.Tensor((batch, heads), "float32"),
    ):
        columns = T.ceildiv(head_dim_v, COMBINE_COLUMNS)
        with T.Kernel(columns, heads, batch, threads=COMBINE_THREADS) as (tile, head, sequence):
            _combine(
                parts, lse_parts, out, lse, sink[head] if with_sink else -T.infinity("float32"),
                sequence, head, tile * COMBINE_COLUMNS, max_splits,
            )  # fmt: skip

    return combine
