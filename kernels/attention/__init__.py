"""Softmax attention, dense and packed, forward and backward, in TileLang.

========================  =====================================================================
`operators`               the two autograd operators: what to call
`validate`                what they accept
`dense`, `packed`         the kernels: signatures and grids
`forward`, `backward`     what a block of a kernel computes: the algorithm
`combine`                 the backward post-pass
`masks`                   which query sees which key
`rows`                    where the rows of a sequence lie in memory
`tiles`, `options`        tile sizes and compiler options, with their reasons
========================  =====================================================================
"""

from tlmatrix_kernels.attention.operators import dense_attention, varlen_attention

__all__ = ["dense_attention", "varlen_attention"]
