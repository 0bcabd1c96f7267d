"""Whole sequences and their shards."""

import itertools
from dataclasses import dataclass

import torch

from tlmatrix_kernels.distributed.attention import Sharding
from tlmatrix_kernels.distributed.attention.reference import gathered_attention_varlen


@dataclass(frozen=True)
class Case:
    """A packed batch in float16; `want` is its attention in float64."""

    lengths_q: tuple
    lengths_k: tuple
    causal: bool
    sharding: Sharding
    whole: tuple
    want: torch.Tensor

    @classmethod
    def of(cls, order, world, lengths_q, lengths_k, causal):
        source, rows_k = torch.Generator().manual_seed(0), sum(lengths_k)
        shapes = (sum(lengths_q), 2, 32), (rows_k, 1, 32), (rows_k, 1, 32)
        whole = tuple(torch.randn(shape, generator=source).half() for shape in shapes)
        case = cls(lengths_q, lengths_k, causal, Sharding(order, world), whole, torch.empty(0))
        wide = [tensor.double() for tensor in whole]
        out, _ = gathered_attention_varlen(*wide, *case.bounds, causal=causal)
        object.__setattr__(case, "want", out)
        return case

    @property
    def bounds(self):
        """cu_seqlens of queries and of keys."""
        return [
            torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
            for lengths in (self.lengths_q, self.lengths_k)
        ]

    def shards(self, rank):
        """The rank's q, k and v."""
        queries = self.sharding.positions(self.lengths_q, rank)
        keys = self.sharding.positions(self.lengths_k, rank)
        q, k, v = self.whole
        return q[queries], k[keys], v[keys]

    def check(self, rank, out):
        """Hold the out of one rank against the whole."""
        want = self.want[self.sharding.positions(self.lengths_q, rank)]
        torch.testing.assert_close(out.double(), want, rtol=0.02, atol=0.005)
