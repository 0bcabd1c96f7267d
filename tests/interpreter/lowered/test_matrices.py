"""Products of warps: several tiles at once give what they give one after another."""

from types import SimpleNamespace

import numpy as np
import pytest

from tlmatrix.interpreter.lowered.matrices import mma

WARPS = 3
MACHINE = SimpleNamespace(
    warp_synchronized=lambda _: None,
    whole_warps=lambda mask, _: np.arange(WARPS) if mask is None else np.flatnonzero(mask[::32]),
)


def product(a, b):
    """`a @ b` of one warp by the PTX ISA, of fragments of m16n8k16 [elements, 32]."""
    lane = np.arange(32)
    left, right, found = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((4, 32))
    for e in range(8):
        left[lane // 4 + 8 * (e // 2 % 2), lane % 4 * 2 + e % 2 + 8 * (e // 4)] = a[e]
    for e in range(4):
        right[lane % 4 * 2 + e % 2 + 8 * (e // 2), lane // 4] = b[e]
    for e in range(4):
        found[e] = (left @ right)[lane // 4 + 8 * (e // 2), lane % 4 * 2 + e % 2]
    return found


@pytest.mark.parametrize(
    "tiles",
    [
        [(0, 4, 0)],
        [(0, 0, 0), (0, 4, 4), (8, 0, 12), (8, 4, 8)],  # all products of two by two
        [(0, 0, 0), (8, 4, 4)],  # a part of them
        [(0, 0, 0), (8, 4, 0)],  # to one accumulator
        [(0, 0, 0), (0, 0, 4)],  # one product twice
        [],
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_several_tiles(tiles, masked):
    random = np.random.default_rng(0)
    a, b, c = (
        random.integers(-3, 4, (size, WARPS * 32)).astype(np.float32) for size in (16, 8, 16)
    )
    warps = [0, 2] if masked else range(WARPS)
    expected = c.copy()
    for i, j, k in tiles:
        for warp in warps:
            own = slice(32 * warp, 32 * warp + 32)
            expected[k : k + 4, own] += product(a[i : i + 8, own], b[j : j + 4, own])
    mask = np.repeat([True, False, True], 32) if masked else None
    mma(MACHINE, 16, "float16", "float32", a, b, c, tiles, mask)
    assert np.array_equal(c, expected)
