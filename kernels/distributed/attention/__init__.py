"""Sequence-parallel attention: each rank fetches keys and values of the others for its own queries.

====================  ==========================================================================
`operators`           the two autograd operators: the public API
`reference`           the same in plain PyTorch: all-gather, then attention
`validate`            argument checks
`shards`              the partition of a sequence over ranks
`plan`                which keys a rank fetches in which step, and which queries attend to them
`schedule`            the choice of the number of steps
`exchange`            communication of keys, values and their gradients
`kernels`             the kernels of one step
`overlapped_forward`  one forward kernel that waits for remote keys while it runs
====================  ==========================================================================
"""

from tlmatrix_kernels.distributed.attention.operators import (
    sequence_attention,
    sequence_attention_varlen,
)
from tlmatrix_kernels.distributed.attention.shards import Sharding

__all__ = ["Sharding", "sequence_attention", "sequence_attention_varlen"]
