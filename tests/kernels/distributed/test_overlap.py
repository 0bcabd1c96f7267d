"""Whether a call overlaps: every rank answers alike, also where ranks have different shares."""

import functools

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_on_gloo

from tlmatrix import simulate
from tlmatrix_kernels.distributed import all_gather_gemm, create_context, gemm_reduce_scatter
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.overlap import MIN_FLOP, overlap_pays, should_overlap
from tlmatrix_kernels.distributed.partition import row_range

pytestmark = pytest.mark.usefixtures("preloaded")

M, N, K = 12, 24, 40
LINES = {
    # Between the products of the ranks with the most and with the fewest columns or k.
    "all_gather_gemm": 2.0 * M * K * (N / 3 + 0.5),
    "gemm_reduce_scatter": 2.0 * M * N * (K / 3),
}


def signs(seed, *shape):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=source).half()


def program(_, total=None):
    """Whether each operator overlapped, and whether it was right, on three uneven ranks."""
    context = create_context()
    world, rank = context.world, context.rank
    a, b = signs(1, M, K), signs(2, K, N + 1)
    rows, columns, slices = (slice(*row_range(each, world, rank)) for each in (M, N + 1, K))
    c = all_gather_gemm(
        a[rows], b[:, columns].contiguous(), context=context, n=total and N + 1
    )  # fmt: skip
    summed = gemm_reduce_scatter(
        a[:, slices].contiguous(), b[slices, :N].contiguous(), context=context, k=total and K
    )
    whole = a.float() @ b.float()
    assert torch.equal(c.float(), whole[:, columns])
    assert torch.equal(summed.float(), whole[rows, :N])
    return [name in context._epochs for name in LINES], len(context._agreed)


@pytest.fixture
def lines(monkeypatch):
    for operator, line in LINES.items():
        monkeypatch.setitem(MIN_FLOP, operator, {2: line})


@pytest.mark.parametrize("total", [None, True])
def test_ranks_with_different_shards_choose_the_same_path(lines, total):
    found = simulate(functools.partial(program, total=total), world=3, seed=4, stragglers=True)
    assert not found.reports
    # The largest share lies above the line; what is known of all needs no word between ranks.
    assert found.results == [([True, True], 0 if total else 2)] * 3


def test_agreement_is_cached(lines, monkeypatch):
    asked = []
    original = dist.all_reduce

    def counted(*args, **kwargs):
        asked.append(dist.get_rank())
        return original(*args, **kwargs)

    monkeypatch.setattr(dist, "all_reduce", counted)

    def twice(_):
        context = create_context()
        k = row_range(K, 3, context.rank)
        for _call in range(3):
            a, b = signs(1, M, k[1] - k[0]), signs(2, k[1] - k[0], N)
            gemm_reduce_scatter(a, b, context=context)

    simulate(twice, world=3)
    assert sorted(asked) == [0, 1, 2]


def test_one_rank_or_an_explicit_choice_needs_no_agreement():
    alone = Context(None, 0, 1, torch.device("cpu"))
    assert not should_overlap("all_gather_gemm", True, alone, (8192, 8192), 8192, None)
    two = Context(None, 0, 2, torch.device("cpu"))
    assert should_overlap("all_gather_gemm", True, two, (1, 1), 1, None)
    assert not should_overlap("all_gather_gemm", False, two, (8192, 8192), 8192, None)
    assert should_overlap("all_gather_gemm", None, two, (8192, 8192), 8192, 16384)
    assert not two._agreed


def test_inconsistent_shard_sizes_are_named():
    two = Context(None, 1, 2, torch.device("cpu"))
    a, b = signs(1, 4, 8), signs(2, 8, 6)
    with pytest.raises(ValueError, match=r"b must have 5 columns on rank 1, .* n=10 .* got 6"):
        all_gather_gemm(a, b, context=two, n=10)
    with pytest.raises(ValueError, match=r"a must have 5 columns on rank 1, .* k=10 .* got 8"):
        gemm_reduce_scatter(a, b, context=two, k=10)


def largest_of_ranks():
    context = create_context(device="cpu")
    first = context.agreed_max(("a", 1), 3 + context.rank)
    again = context.agreed_max(("a", 1), 100)
    return [torch.tensor([first, again])]


def test_cpu_processes_agree_through_gloo(tmp_path):
    found = run_on_gloo(2, largest_of_ranks, tmp_path)
    assert [each[0].tolist() for each in found] == [[4, 4]] * 2


@pytest.mark.parametrize(("world", "size", "gathered", "scattered"), [
    (2, 8192, True, True), (2, 5120, True, True), (2, 4096, True, False), (2, 2048, False, False),
    (4, 8192, True, True), (4, 6144, True, True), (4, 4096, False, False), (4, 2048, False, False),
    (8, 8192, True, True), (8, 4096, False, False),
])  # fmt: skip
def test_overlap_is_chosen_where_it_measured_faster(world, size, gathered, scattered):
    sizes = size, size, size // world
    assert overlap_pays("all_gather_gemm", world, *sizes) == gathered
    assert overlap_pays("gemm_reduce_scatter", world, *sizes) == scattered
    assert not overlap_pays("all_gather_gemm", 1, *sizes)
