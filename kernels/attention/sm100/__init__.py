"""Softmax attention on Blackwell (sm_100a), with tcgen05 MMAs and tensor memory.

==========  ===================================================
`operator`  the operator: the public API
`forward`   the forward pass of one thread block, in three variants
`backward`  the backward pass of one thread block
`kernels`   signatures and grids
`tiles`     tile sizes, with their reasons
==========  ===================================================
"""

from tlmatrix_kernels.attention.sm100.operator import sm100_attention

__all__ = ["sm100_attention"]
