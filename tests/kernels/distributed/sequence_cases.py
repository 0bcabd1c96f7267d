"""Whole sequences, their shards, and the definition of attention to hold both against."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "attention"))

import attention_reference as reference

from tlmatrix_kernels.distributed.attention import Sharding


@dataclass(frozen=True)
class Case:
    """A packed batch in float16, and what its attention is in float64."""

    lengths_q: tuple
    lengths_k: tuple
    causal: bool
    sharding: Sharding
    whole: tuple
    do: torch.Tensor
    want: tuple

    @classmethod
    def of(cls, order, world, lengths_q, lengths_k, causal, heads=(2, 1), dims=(32, 32)):
        rows_q, rows_k = sum(lengths_q), sum(lengths_k)
        q, k, v = reference.leaves(
            (rows_q, heads[0], dims[0]), (rows_k, heads[1], dims[0]), (rows_k, heads[1], dims[1])
        )
        out, lse = reference.packed(
            *(t.double() for t in (q, k, v)), list(lengths_q), list(lengths_k), causal=causal
        )
        do = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).half()
        gradients = torch.autograd.grad(out, (q, k, v), do.double())
        sharding = Sharding(order, world)
        want = (out.detach(), lse.detach(), *gradients)
        return cls(lengths_q, lengths_k, causal, sharding, (q, k, v), do, want)

    @property
    def bounds(self):
        """cu_seqlens of queries and of keys."""
        return reference.cumulative(self.lengths_q), reference.cumulative(self.lengths_k)

    def positions(self, rank):
        """Where the rank's queries and keys are in the whole."""
        return (
            self.sharding.positions(self.lengths_q, rank),
            self.sharding.positions(self.lengths_k, rank),
        )

    def shards(self, rank):
        """The rank's q, k and v, which want gradients, and its do."""
        queries, keys = self.positions(rank)
        q, k, v = (t.detach() for t in self.whole)
        leaves = [t.requires_grad_() for t in (q[queries], k[keys], v[keys])]
        return leaves, self.do[queries]

    def compare_rank(self, rank, result, dtype=torch.float16):
        """Hold what one rank has, (out, lse, dq, dk, dv), against the definition."""
        queries, keys = self.positions(rank)
        out, lse, *gradients = self.want
        own = (out[queries], gradients[0][queries], gradients[1][keys], gradients[2][keys])
        torch.testing.assert_close(result[1].double(), lse[:, queries], rtol=1e-5, atol=2e-5)
        for name, got, want in zip(
            ("out", "dq", "dk", "dv"), (result[0], *result[2:]), own, strict=True
        ):
            reference.assert_near(got, want, f"{name} of rank {rank}", dtype)

    def compare(self, results, dtype=torch.float16):
        """Hold (out, lse, dq, dk, dv) of all ranks, put together, against the definition."""
        got = [torch.full_like(t, torch.nan, dtype=torch.float64) for t in self.want]
        for rank, (out, lse, dq, dk, dv) in enumerate(results):
            queries, keys = self.positions(rank)
            got[0][queries], got[2][queries] = out.double(), dq.double()
            got[1][:, queries] = lse.double()
            got[3][keys], got[4][keys] = dk.double(), dv.double()
        torch.testing.assert_close(got[1], self.want[1], rtol=1e-5, atol=2e-5)
        for name, place in {"out": 0, "dq": 2, "dk": 3, "dv": 4}.items():
            reference.assert_near(got[place], self.want[place], name, dtype)
