"""Softmax attention on Blackwell (sm_100a), with tcgen05 products and tensor memory.

==========  ===================================================
`operator`  what to call
`forward`   what a block of the forward pass computes, in three variants
`backward`  what a block of the backward pass computes
`kernels`   signatures and grids
`tiles`     tile sizes, with the reasons
==========  ===================================================
"""

from tlmatrix_kernels.attention.sm100.operator import sm100_attention

__all__ = ["sm100_attention"]
