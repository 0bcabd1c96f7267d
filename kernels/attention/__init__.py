"""Softmax attention, dense and packed, forward and backward, in TileLang.

========================  =====================================================================
`operators`               the two autograd operators: what to call
`validate`                what they accept
`dense`, `packed`         the kernels: signatures and grids
`forward`, `backward`     what a block of a kernel computes: the algorithm
`softmax`                 the online softmax of a tile of queries, and how a sink starts it
`combine`, `reordered`    the backward post-passes, and a sum of dq in an order of its own
`sink`                    the gradient of the sinks
`masks`                   which query sees which key
`rows`                    where the rows of a sequence lie in memory
`tiles`, `options`        tile sizes and compiler options, with their reasons
`sm100`                   the same on Blackwell: an operator of its own
`padded`                  packed attention of padded tensors with masks: an operator of its own
`decode`                  one query against many keys, cached or in pages: operators of its own
========================  =====================================================================
"""

from tlmatrix_kernels.attention.decode import decode_attention, paged_attention
from tlmatrix_kernels.attention.operators import dense_attention, varlen_attention
from tlmatrix_kernels.attention.padded import padded_attention
from tlmatrix_kernels.attention.sm100 import sm100_attention

__all__ = [
    "decode_attention",
    "dense_attention",
    "padded_attention",
    "paged_attention",
    "sm100_attention",
    "varlen_attention",
]
