"""Softmax attention, dense and packed, forward and backward, in TileLang.

========================  =====================================================================
`operators`               the two autograd operators: the public API
`validate`                argument checks
`cu_seqlens`              host copies of cu_seqlens
`kernels`, `launch`       the kernels: parameters and grids; `dense` has one of them for specs
`forward`, `backward`     the algorithm of one thread block
`softmax`                 online softmax, and the initial state with or without a sink
`combine`, `reordered`    backward post-passes; the dq accumulator in register order
`sink`                    the gradient of the sinks
`masks`                   the causal and window mask
`rows`                    the memory layout of sequences: dense and packed
`tiles`, `options`        tile sizes and compiler options, with their reasons
`sm100`                   dense attention on Blackwell: an operator of its own
`padded`                  attention of padded tensors with masks: an operator of its own
`decode`                  one query per sequence against cached or paged keys: two operators
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
