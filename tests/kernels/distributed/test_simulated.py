"""The operators on simulated ranks, beyond what specs say: one context for all, and its memory."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix import simulate
from tlmatrix_kernels.distributed import (
    all_gather,
    all_gather_gemm,
    create_context,
    gemm_reduce_scatter,
    reduce_scatter,
)
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.distributed.segments import MAX_SEGMENTS


def signs(seed, *shape):
    """Of -1, 0 and 1: sums are exact, so results are equal in every bit."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=source).half()


def calls(context, seed):
    """What the calls of all operators, back to back on one context, got wrong."""
    world, rank = context.world, context.rank
    wrong = []
    for call, (m, n, k) in enumerate([(5, 9, 8), (130, 24, 16), (1, 3, 5), (70, 129, 33)]):
        a, b = signs(seed + call, m, k), signs(seed + call + 50, k, n)
        terms_a, terms_b = signs(seed + call, world, m, k), signs(seed + call + 50, world, k, n)
        begin, end = row_range(m, world, rank)
        product = (terms_a.float() @ terms_b.float()).sum(0)[begin:end].half()
        results = {
            "gathered": (all_gather(a[begin:end], context=context, rows=m), a),
            "product": (
                all_gather_gemm(a[begin:end], b, context=context, m=m, overlap=True),
                (a.float() @ b.float()).half(),
            ),
            "scattered": (
                reduce_scatter(terms_a[rank], context=context),
                terms_a.sum(0)[begin:end],
            ),
            "summed": (
                gemm_reduce_scatter(terms_a[rank], terms_b[rank], context=context, overlap=True),
                product,
            ),
        }
        wrong += [
            (call, name) for name, (got, want) in results.items() if not torch.equal(got, want)
        ]
    for name, count in (
        ("all_gather_gemm/ready", world),
        ("gemm_reduce_scatter/done", world),
        ("gemm_reduce_scatter/made", MAX_SEGMENTS),
    ):
        behind = context.flags(name, count).storage.view(torch.int32)[count:]
        wrong += [(name, "behind the flags")] * int(len(behind) == 0 or behind.any())
    return wrong


@pytest.mark.parametrize(("world", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_operators_share_a_context_and_shapes_change_from_call_to_call(world, seed):
    found = simulate(
        lambda _: calls(create_context(), seed), world=world, seed=seed, stragglers=True
    )
    assert found.results == [[]] * world
    assert not found.reports


@pytest.mark.parametrize(("m", "world"), [(1, 2), (1, 3), (2, 3)])
def test_empty_rank_runs_ahead_only_as_far_as_its_peers(m, world):
    """It waits for nobody's product: only the barrier keeps it from the half that is still read."""
    a, b = signs(0, world, m, 32), signs(1, world, 32, 64)
    whole = (a.float() @ b.float()).sum(0).half()

    def program(rank):
        context = create_context()
        outs = [
            gemm_reduce_scatter(a[rank], b[rank], context=context, overlap=True) for _ in range(4)
        ]
        return all(torch.equal(out, whole[slice(*row_range(m, world, rank))]) for out in outs)

    for seed in range(2):
        found = simulate(program, world=world, seed=seed, stragglers=True)
        assert found.results == [True] * world
        assert not found.reports


def test_counts_of_many_calls_pass_the_end_of_32_bits():
    def program(rank):
        context = create_context()
        terms_a, terms_b = signs(0, 2, 6, 8), signs(1, 2, 8, 16)
        right = []
        for call in range(4):
            if call == 2:  # as after some ten million calls
                behind = 2**31 - 3 * 16 - 1
                torch.cuda.synchronize()
                dist.barrier()
                flags = context.flags("gemm_reduce_scatter/done", 2).local([2], torch.int32)
                made = context.flags("gemm_reduce_scatter/made", MAX_SEGMENTS)
                flags.add_(behind)
                made.local([MAX_SEGMENTS], torch.int32).add_(behind)
                context.expected_counts("gemm_reduce_scatter", [behind] * 2)
                context.expected_counts("gemm_reduce_scatter/made", [behind] * MAX_SEGMENTS)
                dist.barrier()
            out = gemm_reduce_scatter(terms_a[rank], terms_b[rank], context=context, overlap=True)
            whole = (terms_a.float() @ terms_b.float()).sum(0).half()
            right.append(torch.equal(out, whole[slice(*row_range(6, 2, rank))]))
        return right

    assert simulate(program, world=2, seed=0).results == [[True] * 4] * 2


@pytest.mark.parametrize("waits", [True, False])
def test_replaced_buffer_is_freed_after_its_last_use(waits, monkeypatch):
    """Rows of the third call do not fit the memory that the first one still may be read from."""

    def allocated(size, device, group, rank, world):
        """`allocate`, but it waits only for the stream that zeroes new memory."""
        del device
        storage = symm_mem.empty(size, dtype=torch.uint8)
        torch.cuda.default_stream().synchronize()
        return SymmetricBuffer(storage, symm_mem.rendezvous(storage, group), rank, world)

    if not waits:
        monkeypatch.setattr("tlmatrix_kernels.distributed.context.allocate", allocated)

    def program(rank):
        context = create_context()
        terms = [torch.full((rows, 16), rank + 1.0).half() for rows in (8, 8, 4000, 4000, 40)]
        with torch.cuda.stream(torch.cuda.Stream()):  # not the default one
            outs = [all_gather(x, context=context) for x in terms]
            return [out.float().sum().item() for out in outs]

    for seed in range(3):
        found = simulate(program, world=3, seed=seed, stragglers=True)
        assert found.results == [[rows * 16 * 6.0 for rows in (8, 8, 4000, 4000, 40)]] * 3
        freed = [str(report) for report in found.reports if "which dropped it" in str(report)]
        assert bool(freed) is not waits
        assert len(freed) == len(found.reports)
