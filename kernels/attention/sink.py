"""The gradient of the sinks, in two passes over the padded rows of the backward.

A sink is a key with the value 0 (see `softmax`), so its dp is 0. With its weight in row i,
p[i] = exp(sink - lse[i]),

    dsink = sum over the rows i of the head, of all sequences: -p[i] * delta[i]

The rows are the padded rows of the pre-pass (see `rows`): lse * log2(e) and delta, float32,
[sequences, heads, rows] for dense attention, [1, heads, rows] for packed. Rows past the end of a
sequence and rows with no visible key have delta 0. They are masked by select: their lse is 0 or
-inf, and the exponential may be infinite.

A block of the first pass sums `PART` rows of one head; the second pass sums the parts of a head.
All sums are float32 in a fixed order, so dsink is bitwise reproducible.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.softmax import LOG2_E

PART = 2048
"""Rows per block: 16 KiB of loads in flight; half a million rows are 256 parts."""
THREADS = 256


@tilelang.jit(pass_configs=PASS_CONFIGS)
def sink_parts(sink_dtype):
    """Build the first pass: sums over `PART` rows each, parts [heads, sequences, parts]."""
    heads, sequences, rows, count = T.dynamic("heads, sequences, rows, count")

    @T.prim_func
    def attention_sink_parts(
        sink: T.Tensor((heads,), sink_dtype),
        row_lse: T.Tensor((sequences, heads, rows), "float32"),
        row_delta: T.Tensor((sequences, heads, rows), "float32"),
        parts: T.Tensor((heads, sequences, count), "float32"),
    ):
        with T.Kernel(count, heads, sequences, threads=THREADS) as (part, head, sequence):
            term = T.alloc_fragment([PART], "float32")
            total = T.alloc_fragment([1], "float32")
            for i in T.Parallel(PART):
                row = part * PART + i
                term[i] = T.if_then_else(row < rows, row_delta[sequence, head, row], 0.0)
            for i in T.Parallel(PART):
                row = part * PART + i
                term[i] = T.if_then_else(
                    term[i] == 0.0,
                    0.0,
                    -term[i]
                    * T.exp2(T.cast(sink[head], "float32") * LOG2_E - row_lse[sequence, head, row]),
                )
            T.reduce_sum(term, total, dim=0)
            for i in T.Parallel(1):
                parts[head, sequence, part] = total[i]

    return attention_sink_parts


@tilelang.jit(pass_configs=PASS_CONFIGS)
def sink_total(sink_dtype):
    """Build the second pass: parts [heads, parts] to dsink [heads]."""
    heads, count = T.dynamic("heads, count")

    @T.prim_func
    def attention_sink_total(
        parts: T.Tensor((heads, count), "float32"),
        dsink: T.Tensor((heads,), sink_dtype),
    ):
        with T.Kernel(heads, threads=THREADS) as head:
            tally = T.alloc_fragment([THREADS], "float32")
            total = T.alloc_fragment([1], "float32")
            T.clear(tally)
            for step in T.serial(T.ceildiv(count, THREADS)):
                for i in T.Parallel(THREADS):
                    if step * THREADS + i < count:
                        tally[i] += parts[head, step * THREADS + i]
            T.reduce_sum(tally, total, dim=0)
            for i in T.Parallel(1):
                dsink[head] = total[i]

    return attention_sink_total
