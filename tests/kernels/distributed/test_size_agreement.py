"""Ranks agree on the sizes of a call at their first use, or all refuse, with the values by rank."""

import pytest
import torch

from tlmatrix import simulate
from tlmatrix_kernels.distributed import (
    agreement,
    all_gather,
    all_gather_gemm,
    create_context,
    create_two_level_context,
    gemm_reduce_scatter,
    gemm_reduce_scatter_two_level,
    reduce_scatter,
    reduce_scatter_two_level,
)
from tlmatrix_kernels.distributed.attention import sequence_attention, sequence_attention_varlen


def half(*shape):
    return torch.ones(shape, dtype=torch.float16)


def refusals(call, world, nodes=None):
    """The message with which each rank refuses `call(rank, context)`; None where it does not."""

    def program(rank):
        context = create_context() if nodes is None else create_two_level_context(nodes)
        try:
            call(rank, context)
        except ValueError as error:
            return str(error)
        return None

    return simulate(program, world=world).results


def gathered(rank, context):
    all_gather(half(64 - 2 * rank, 4), context=context)


def gathered_wide(rank, context):
    all_gather(half(64, 4 + rank), context=context)


def product(rank, context):
    all_gather_gemm(half(64 - 2 * rank, 8), half(8, 16), context=context)


def product_in_two_ways(rank, context):
    all_gather_gemm(half(64, 8), half(8, 16), context=context, overlap=rank == 1)


def summed_product(rank, context):
    gemm_reduce_scatter(half(64 - 2 * rank, 8), half(8, 16), context=context)


def summed(rank, context):
    reduce_scatter(half(64, 4) if rank == 0 else half(64, 4).bfloat16(), context=context)


def attended(rank, context):
    rows = half(1, 64 - 2 * rank, 1, 32)
    sequence_attention(rows, rows, rows, context=context)


def attended_packed(rank, context):
    # Two ranks with 32 rows each, of sequences that they believe to be of other lengths.
    rows, bounds = half(32, 1, 32), [[0, 32, 64], [0, 16, 64]][rank]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    sequence_attention_varlen(rows, rows, rows, cu_seqlens, cu_seqlens, context=context)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (gathered, "all_gather must be called alike on all ranks, got rows 128 on rank 0, 124 on"),
        (gathered_wide, "shape of a row (4,) on rank 0, (5,) on rank 1"),
        (product, "m 128 on rank 0, 124 on rank 1: ranks with different numbers of rows must"),
        (product_in_two_ways, "got overlap False on rank 0, True on rank 1"),
        (summed_product, "got m 64 on rank 0, 62 on rank 1"),
        (summed, "got dtype torch.float16 on rank 0, torch.bfloat16 on rank 1"),
        (attended, "query lengths (128,) on rank 0, (124,) on rank 1; key lengths (128,)"),
        (attended_packed, "query lengths (32, 32) on rank 0, (16, 48) on rank 1"),
    ],
)  # fmt: skip
def test_different_sizes_are_refused_on_every_rank(call, words):
    first, second = refusals(call, 2)
    assert first == second
    assert words in first


def test_ranks_of_all_nodes_must_agree():
    def call(rank, context):
        reduce_scatter_two_level(half(64 - 4 * (rank == 3), 4), context=context)

    found = refusals(call, 4, nodes=2)
    assert len(set(found)) == 1
    assert "got shape (64, 4) on rank 0, (60, 4) on rank 3" in found[0]


def test_sizes_are_exchanged_at_first_use_only(monkeypatch):
    exchanged, original = [], agreement.check_equal
    monkeypatch.setattr(
        "tlmatrix_kernels.distributed.context.check_equal",
        lambda *args: exchanged.append(1) or original(*args),
    )

    def program(rank):
        context, counts = create_context(), []
        for total in (7, 7, 8, 7):  # rank 0 has 4 rows of either total
            x = half(total, 2).tensor_split(2)[rank]
            assert all_gather(x, context=context, rows=total).shape == (total, 2)
            reduce_scatter(half(total, 2), context=context)
            counts.append(len(context._equal))
        return counts

    assert simulate(program, world=2, seed=1).results == [[2, 2, 4, 4]] * 2
    assert len(exchanged) == 2 * 4


@pytest.mark.parametrize("value", [3.0, True, -3, "3"])
def test_invalid_sizes_are_named(value):
    context, a = create_context(device="cpu"), half(3, 3)
    calls = {
        "rows": lambda: all_gather(a, context=context, rows=value),
        "m": lambda: all_gather_gemm(a, a, context=context, m=value),
        "n": lambda: all_gather_gemm(a, a, context=context, n=value),
        "k": lambda: gemm_reduce_scatter(a, a, context=context, k=value),
    }
    for name, call in calls.items():
        message = f"{name} must be an int of at least 0, or None, got {value!r}"
        with pytest.raises(ValueError, match=message):
            call()


def test_invalid_contexts_are_named():
    a, rows = half(8, 8), half(1, 8, 1, 32)
    calls = [
        lambda context: all_gather(a, context=context),
        lambda context: reduce_scatter(a, context=context),
        lambda context: all_gather_gemm(a, a, context=context),
        lambda context: gemm_reduce_scatter(a, a, context=context),
        lambda context: sequence_attention(rows, rows, rows, context=context),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"context must be a Context \(create_context\), got"):
            call(create_two_level_context(1, device="cpu"))
    with pytest.raises(TypeError, match=r"context must be a TwoLevelContext \(create_two_level_"):
        reduce_scatter_two_level(a, context=create_context(device="cpu"))


@pytest.mark.parametrize("value", [1, None, "yes"])
@pytest.mark.parametrize(
    ("operator", "create"),
    [
        (all_gather_gemm, create_context),
        (gemm_reduce_scatter, create_context),
        (gemm_reduce_scatter_two_level, lambda device: create_two_level_context(1, device=device)),
    ],
)
def test_invalid_transpose_b_is_named(operator, create, value):
    message = f"transpose_b must be True or False, got {value!r}"
    with pytest.raises(ValueError, match=message):
        operator(half(3, 3), half(3, 3), context=create(device="cpu"), transpose_b=value)
