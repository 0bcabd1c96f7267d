"""Decoding: one query position of each sequence against many keys, in a cache or in pages.

==========  ===========================================================
`operators`  what to call
`validate`   what they accept
`kernels`    signatures and grids
`block`      what a block computes of its share of the keys
`keys`       where keys lie, and which of them a share is
`combine`    the second pass: parts to one result
`splits`     how many shares
`tiles`      tile sizes, with the reasons
==========  ===========================================================
"""

from tlmatrix_kernels.attention.decode.operators import decode_attention, paged_attention

__all__ = ["decode_attention", "paged_attention"]
