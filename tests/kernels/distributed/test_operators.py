"""What the operators of several ranks refuse, in which words."""

import pytest
import torch

from tlmatrix_kernels.distributed import (
    TwoLevelContext,
    all_gather_gemm,
    create_context,
    gemm_reduce_scatter,
    reduce_scatter,
    reduce_scatter_two_level,
)
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.ring import ring
from tlmatrix_kernels.distributed.validate import check_rows


@pytest.fixture
def context():
    return create_context(device="cpu")


def matrices(*shapes):
    source = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=source).half() for shape in shapes]


def test_the_ring_begins_with_the_rank_before():
    assert ring(1, 4) == [0, 3, 2]
    assert ring(0, 1) == []


def test_uneven_shards_must_match_the_given_rows():
    second = Context(None, 1, 4, torch.device("cpu"))
    assert check_rows("a", 5, None, second) == 20
    assert check_rows("a", 5, 18, second) == 18
    with pytest.raises(ValueError, match=r"a must have 5 rows on rank 1, .* rows=18 .* got 4"):
        check_rows("a", 4, 18, second)


def test_mismatched_arguments_are_named(context):
    a, b, bias = matrices((20, 24), (24, 16), (16,))
    with pytest.raises(ValueError, match="a and b must agree in k"):
        all_gather_gemm(a, a, context=context)
    with pytest.raises(ValueError, match="a must be one of float16, bfloat16"):
        gemm_reduce_scatter(a.float(), b, context=context)
    with pytest.raises(ValueError, match=r"bias must have shape \(16,\), got \(15,\)"):
        gemm_reduce_scatter(a, b, bias[:15], context=context)
    with pytest.raises(ValueError, match=r"bias must be one of .* got torch.int32"):
        gemm_reduce_scatter(a, b, bias.int(), context=context)
    with pytest.raises(ValueError, match="bias must be on the device of a"):
        gemm_reduce_scatter(a, b, bias.to("meta"), context=context)
    with pytest.raises(ValueError, match=r"x must be one of .* got torch.int64"):
        reduce_scatter(torch.arange(4), context=context)
    with pytest.raises(ValueError, match="x must have at least 1 dimension"):
        reduce_scatter(torch.tensor(1.0), context=context)
    two = Context(None, 0, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="a multiple of 2 rows for 1 nodes of 2 ranks, got 5"):
        reduce_scatter_two_level(torch.zeros(5, 2), context=TwoLevelContext(two, None))
    huge = torch.empty(2**16, 1, dtype=torch.float16, device="meta")
    wide = torch.empty(1, 2**16, dtype=torch.float16, device="meta")
    with pytest.raises(ValueError, match=r"at most 1073741824 elements, .* use overlap=False"):
        gemm_reduce_scatter(huge, wide, context=two, overlap=True)
