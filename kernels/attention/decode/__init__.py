"""Decode attention: one query per sequence against many keys, in a contiguous or a paged KV cache.

===========  ==========================================================
`operators`  the operators: the public API
`validate`   argument checks
`kernels`    signatures and grids
`block`      the algorithm of one thread block: one split of the keys
`keys`       the memory layout of keys, and the range of keys of a split
`combine`    the second pass: merges the splits
`splits`     the choice of the number of splits
`tiles`      tile sizes, with their reasons
===========  ==========================================================
"""

from tlmatrix_kernels.attention.decode.operators import decode_attention, paged_attention

__all__ = ["decode_attention", "paged_attention"]
