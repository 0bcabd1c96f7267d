"""Segments of the own rows: whole panels, computed and reduced in order."""

import importlib

import pytest
import torch

from tlmatrix import simulate
from tlmatrix_kernels.distributed import create_context, gemm_reduce_scatter
from tlmatrix_kernels.distributed import segments as module
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.segments import MAX_SEGMENTS, segment_count, segments
from tlmatrix_kernels.distributed.swizzle import ordered_tile, panel_height

operator = importlib.import_module("tlmatrix_kernels.distributed.gemm_reduce_scatter")


def test_a_small_share_is_one_piece_and_a_large_one_a_few():
    asked = (0, 1, 2**10, 2**11, 3 * 2**10)
    assert [segment_count(rows, 2**10, 1e12) for rows in asked] == [1, 1, 1, 2, 3]
    assert segment_count(2048, 8192, 1e12) == segment_count(2**30, 2**10, 1e12) == MAX_SEGMENTS


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 1023, 2048, 4099])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_pieces_partition_the_tiles_in_order(world, rows, most):
    block, tiles_n = 64, 3
    tiles_m = -(-rows // block)
    panel = panel_height(rows, world, block, panels=most)
    cuts = row_ranges(rows, world)
    for rank, (begin, end) in enumerate(cuts):
        first = cuts[(rank + 1) % world][0] // block % tiles_m
        found = segments((begin, end), tiles_m, first, panel, block, most)
        assert len(found.cuts) <= most
        inside = [begin + row for cut in found.cuts for row in range(*cut)]
        assert inside == list(range(begin, end)), "each row is of one segment, in order"
        last = {}
        for index in range(tiles_m * tiles_n):
            bm = ordered_tile(index, tiles_m, tiles_n, first, panel)[0]
            own = range(max(begin, bm * block), min(end, (bm + 1) * block))
            if len(own) > 0:  # what the kernel counts it for
                segment = (bm * block - found.base) // found.step
                low, high = found.cuts[segment]
                assert begin + low <= own[0] <= own[-1] < begin + high
                if end % block == 0 or bm != first:  # one with the next rank's rows is made early
                    last[segment] = index
        assert list(last) == sorted(last)
        assert list(last.values()) == sorted(last.values())


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 1024, 1000, 4096, 8192, 10_000])
def test_panels_are_lowered_for_pieces_but_not_to_slivers(rows, world):
    of_share = max(1, -(-rows // (world * 128)))
    alone, lowered = (panel_height(rows, world, 128, panels=panels) for panels in (1, 4))
    assert lowered <= alone
    assert lowered == alone or lowered >= 4
    assert -(-of_share // lowered) >= min(4, of_share // 4)


def signs(seed, *shape):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=source).half()


@pytest.fixture
def small(monkeypatch):
    """Segments of few elements, so that small products have several; the reduced row ranges."""
    monkeypatch.setattr(module, "MIN_ELEMENTS", 64)
    monkeypatch.setattr(module, "MIN_FLOP", 0.0)
    added = []
    original = operator.add_in_ring_order

    def noting(parts, own, bias, out, first):
        added.append((parts.shape[1], first, out.shape[0]))
        original(parts, own, bias, out, first)

    monkeypatch.setattr(operator, "add_in_ring_order", noting)
    return added


def test_a_share_of_several_panels_is_as_many_sums_in_the_order_of_rows(small):
    a, b = signs(0, 1024, 16), signs(1, 16, 24)
    panel = 64 * panel_height(1024, 2, 64, panels=4)

    def program(_):
        before = len(small)
        gemm_reduce_scatter(a, b, context=create_context(), overlap=True)
        return len(small) > before

    assert simulate(program, world=1).results == [False], "one rank has nothing to add"
    simulate(program, world=2, seed=1)
    of_a_rank = [(512, first, panel) for first in range(0, 512, panel)]
    assert len(of_a_rank) == 2
    assert sorted(small) == sorted(2 * of_a_rank)
    assert small.index(of_a_rank[0]) < small.index(of_a_rank[1])


def test_missing_wait_for_a_piece_is_a_race(small, monkeypatch):
    """Simulated ranks tell a sum of rows that the kernel is still making."""
    original = operator.wait_by_stream

    def waits_for_the_first_alone(flags, index, value):
        if len(flags) != MAX_SEGMENTS or index == 0:
            original(flags, index, value)

    monkeypatch.setattr(operator, "wait_by_stream", waits_for_the_first_alone)
    a, b = signs(0, 1100, 16), signs(1, 16, 24)

    def program(_):
        gemm_reduce_scatter(a, b, context=create_context(), overlap=True)

    assert any(simulate(program, world=2, seed=seed).reports for seed in range(3))
