"""Tiles in the order of ranks: each made once, shares in turn, panels inside them."""

import itertools

import pytest

from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.distributed.swizzle import ordered_tile, panel_height

SHAPES = list(itertools.product([1, 2, 3, 7, 8, 9, 17], [1, 2, 3, 8], [1, 2, 3, 8, 20]))


def order(tiles_m, tiles_n, first, panel):
    return [
        ordered_tile(index, tiles_m, tiles_n, first, panel) for index in range(tiles_m * tiles_n)
    ]


@pytest.mark.parametrize(("tiles_m", "tiles_n", "panel"), SHAPES)
def test_panels_wrap_around_from_the_first_row(tiles_m, tiles_n, panel):
    for first in {0, 1 % tiles_m, tiles_m - 1}:
        panels = [
            (bm - first) % tiles_m // panel for bm, _ in order(tiles_m, tiles_n, first, panel)
        ]
        assert panels == sorted(panels)
        heights = [panels.count(number) // tiles_n for number in range(panels[-1] + 1)]
        assert heights[:-1] == [panel] * (len(heights) - 1)
        assert heights[-1] == tiles_m - panel * (len(heights) - 1), "the last panel is short"


def test_neighbours_in_a_panel_share_a_column_and_every_other_panel_goes_back():
    assert [bn for _, bn in order(4, 3, 0, 2)] == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0]
    assert [bm for bm, _ in order(6, 1, 2, 2)] == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 127, 128, 1024, 1000, 4096, 8192, 10_000])
def test_panels_divide_the_tiles_of_a_share_and_are_as_high_as_they_may(rows, world):
    panel = panel_height(rows, world, 128)
    of_share = max(1, -(-rows // (world * 128)))
    assert 1 <= panel <= 8
    assert -(-of_share // panel) == -(-of_share // 8), "no panel more than the highest make"
    assert panel * -(-of_share // panel) - of_share < -(-of_share // panel), "hardly any is short"


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_shards_are_ordered_from_the_requested_one(world):
    rows, block = 128 * 8 * world, 128
    for begin_with in range(world):
        first = row_range(rows, world, begin_with)[0] // block
        owners = [
            bm * block * world // rows
            for bm, _ in order(rows // block, 5, first, panel_height(rows, world, block))
        ]
        turns = [owner for owner, _ in itertools.groupby(owners)]
        assert turns == [(begin_with + turn) % world for turn in range(world)]
