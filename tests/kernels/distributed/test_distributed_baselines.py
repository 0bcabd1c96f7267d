"""What the operators are timed beside does the same, so far as CPUs can show."""

import pytest
import torch

from tlmatrix import simulate
from tlmatrix_kernels.distributed import baselines, create_context
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_range


def signs(seed, *shape):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=source).half()


@pytest.mark.parametrize("transpose_b", [False, True])
def test_unfused_collectives_match_the_operators(transpose_b):
    a, terms_a = signs(1, 11, 8), signs(2, 3, 12, 8)
    b, terms_b = signs(3, 8, 6), signs(4, 3, 8, 6)
    whole = (terms_a.float() @ terms_b.float()).sum(0).half()

    def turned(x):
        return x.T.contiguous() if transpose_b else x

    def program(rank):
        context = create_context()
        mine, rows = slice(*row_range(11, 3, rank)), slice(*row_range(12, 3, rank))
        gathering = (baselines.all_gather_then_gemm, baselines.all_gather_then_torch)
        in_turn = baselines.gemm_then_reduce_scatter, baselines.torch_then_reduce_scatter
        options = {"context": context, "transpose_b": transpose_b}
        return [
            *(torch.equal(f(a[mine], turned(b), m=11, **options), a @ b) for f in gathering),
            *(
                torch.equal(f(terms_a[rank], turned(terms_b[rank]), **options, **more), whole[rows])
                for f, more in zip(in_turn, ({}, {"m": 12}), strict=True)
            ),
        ]

    assert simulate(program, world=3).results == [[True] * 4] * 3


def test_pytorch_fused_operators_reject_uneven_shards():
    alone = Context(None, 0, 1, torch.device("cpu"))
    for fused in (
        baselines.torch_all_gather_matmul,
        baselines.torch_matmul_reduce_scatter,
        baselines.torch_then_reduce_scatter,
    ):
        with pytest.raises(NotImplementedError, match="needs 8 rows split evenly"):
            fused(signs(1, 8, 8), signs(2, 8, 8), context=alone, m=8)
