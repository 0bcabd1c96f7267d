"""Contexts, symmetric buffers and gathers where there is one rank; more are simulated."""

import pytest
import torch

from tlmatrix_kernels.distributed import (
    all_gather,
    all_gather_gemm,
    create_context,
    gemm_reduce_scatter,
)
from tlmatrix_kernels.distributed.pull import pull_order, to_int32


@pytest.fixture
def context():
    return create_context(device="cpu")


def test_without_torch_distributed_there_is_one_rank(context):
    assert (context.rank, context.world, context.group) == (0, 1, None)
    x = torch.randn(5, 3)
    assert torch.equal(all_gather(x, context=context), x)
    assert all_gather(x[:0], context=context).shape == (0, 3)
    with pytest.raises(ValueError, match="x must have at least 1 dimension"):
        all_gather(x[0, 0], context=context)


def test_buffers_grow_only_when_too_small(context):
    small = context.buffer("a", 100)
    assert context.buffer("a", small.storage.numel()) is small
    large = context.buffer("a", small.storage.numel() + 1)
    assert large.storage.numel() == 2 * small.storage.numel()
    assert context.buffer("a", 1) is large
    assert context.buffer("b", 1) is not large


def test_flags_begin_at_zero_and_keep_their_values(context):
    flags = context.flags("f", 3).local([3], torch.int32)
    assert flags.tolist() == [0, 0, 0]
    flags[1] = 7
    assert context.flags("f", 3).local([3], torch.int32).tolist() == [0, 7, 0]
    with pytest.raises(ValueError, match="flags 'f' were made for 16, got count=17"):
        context.flags("f", 17)


def test_views_alias_the_buffer_and_check_bounds(context):
    buffer = context.buffer("a", 1 << 16)
    buffer.storage.zero_()
    buffer.local([2, 3], torch.float16, offset=8).fill_(1)
    assert buffer.storage.nonzero().min() >= 8
    assert buffer.local([10], torch.float16).tolist() == [0.0] * 4 + [1.0] * 6
    assert buffer.local([0, 4], torch.float32).shape == (0, 4)
    with pytest.raises(ValueError, match="peer must be a rank from 0 to 0, got 1"):
        buffer.on(1, [1], torch.float32)
    with pytest.raises(ValueError, match="offset must be a multiple of 4 bytes, got 6"):
        buffer.local([1], torch.float32, offset=6)
    with pytest.raises(ValueError, match="bytes 65532 to 65540 exceed the buffer of 65536"):
        buffer.local([2], torch.float32, offset=65532)


def test_each_operator_counts_its_own_calls(context):
    assert [context.next_epoch("a"), context.next_epoch("b"), context.next_epoch("a")] == [1, 1, 2]


def test_ranks_pull_from_their_neighbor_first():
    for world in (1, 2, 3, 8):
        orders = [pull_order(rank, world) for rank in range(world)]
        for rank, order in enumerate(orders):
            assert sorted([*order, rank]) == list(range(world))
        for turn in range(world - 1):
            assert len({order[turn] for order in orders}) == world


def test_counts_pass_to_kernels_by_their_low_32_bits():
    assert to_int32(5) == 5
    assert to_int32(2**31) == -(2**31)
    assert to_int32(2**32 + 3) == 3
    assert to_int32(2**32 - 1) == -1


def test_uncapturable_calls_are_refused(context, monkeypatch):
    context.buffer("a", 100)
    monkeypatch.setattr(type(context), "capturing", lambda self: True)
    context.buffer("a", 100)
    with pytest.raises(RuntimeError, match=r"buffer 'a' has to grow to 65537 bytes while a"):
        context.buffer("a", 65537)
    a = torch.zeros(8, 8, dtype=torch.float16)
    context.world = 2  # one alone does not overlap
    for operator in (all_gather_gemm, gemm_reduce_scatter):
        with pytest.raises(RuntimeError, match=r"captured .*; use overlap=False"):
            operator(a, a, context=context, overlap=True)
