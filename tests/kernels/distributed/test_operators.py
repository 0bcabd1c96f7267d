"""The operators where there is one rank, and what they refuse; specs have more ranks."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.distributed import (
    TwoLevelContext,
    all_gather_gemm,
    create_context,
    create_two_level_context,
    gemm_reduce_scatter,
    reduce_scatter,
    reduce_scatter_two_level,
)
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.overlap import MIN_FLOP, overlap_pays
from tlmatrix_kernels.distributed.ring import add_in_ring_order, ring
from tlmatrix_kernels.distributed.validate import check_rows


@pytest.fixture
def context():
    return create_context(device="cpu")


def matrices(*shapes):
    source = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=source).half() for shape in shapes]


def test_one_rank_returns_the_whole_sum(context):
    a, b, bias = matrices((20, 24), (24, 16), (16,))
    with interpret():
        out = all_gather_gemm(a, b, context=context, out_dtype=torch.float32)
        summed = gemm_reduce_scatter(a, b, bias, context=context, out_dtype=torch.float32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(summed, out + bias.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(reduce_scatter(a, context=context), a)
    nodes = create_two_level_context(1, device="cpu")
    assert torch.equal(reduce_scatter_two_level(a, context=nodes), a)


@pytest.mark.parametrize("n", [1, 8, 1000, 1024, 1032, 2049])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_parts_are_added_in_float32_and_rounded_once(n, dtype):
    source = torch.Generator().manual_seed(n)
    parts = torch.randn(7, 3, n, generator=source).to(dtype)
    own, bias = torch.randn(3, n, generator=source).to(dtype), torch.randn(n, generator=source)
    out = torch.full_like(own, torch.nan)
    wanted = torch.zeros(3, n)
    for part in [*parts, own]:
        wanted += part.float()
    with interpret():
        add_in_ring_order(parts, own, bias, out)
    assert torch.equal(out, (wanted + bias).to(dtype))
    with interpret():
        add_in_ring_order(parts[:0], own, None, out)
    assert torch.equal(out, own)


def test_the_ring_begins_with_the_rank_before():
    assert ring(1, 4) == [0, 3, 2]
    assert ring(0, 1) == []


def test_overlapping_is_for_several_ranks_and_products_of_some_size():
    for operator in MIN_FLOP:
        assert not overlap_pays(operator, 1, 8192, 8192, 8192)
        assert not overlap_pays(operator, 4, 128, 128, 128)
        for world in (2, 3, 4, 8, 16):
            assert overlap_pays(operator, world, 8192, 8192, 8192)


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
