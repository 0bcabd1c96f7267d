"""Attention with sequences split over the ranks: keys and values come to the queries.

=============  =================================================================================
`operators`    the two autograd operators: what to call
`reference`    the same in plain PyTorch: gather, then attend
`validate`     what they accept
`shards`       which rank owns which rows
`plan`         what a rank fetches, and which of its queries see which keys when
`schedule`     in how many steps
`exchange`     fetching keys, and giving gradients back
`kernels`      queries in runs against ranges of keys
=============  =================================================================================
"""

from tlmatrix_kernels.distributed.attention.operators import (
    sequence_attention,
    sequence_attention_varlen,
)
from tlmatrix_kernels.distributed.attention.shards import Sharding

__all__ = ["Sharding", "sequence_attention", "sequence_attention_varlen"]
