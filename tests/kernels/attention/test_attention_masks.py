"""The tile bounds of a mask are exact: they miss no visible pair and walk over no blind tile."""

import pytest
import torch
from tilelang import tvm

from tlmatrix_kernels.attention.masks import Mask

LENGTHS = [(1, 1), (4, 4), (5, 9), (9, 5), (2, 13), (13, 2), (8, 8)]
WINDOWS = [None, 1, 3, 4, 50]
ROWS, COLUMNS = 4, 3


def visible(seqlen_q, seqlen_k, causal, window):
    """[seqlen_q, seqlen_k] bool: which query sees which key."""
    place = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k)[None, :]
    seen = key <= place if causal else torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    return seen if window is None else seen & (key > place - window)


def constant(value):
    return tvm.tirx.IntImm("int32", value)


def decided(condition):
    return bool(tvm.arith.Analyzer().simplify(condition))


def tiles_seen(seen, rows, columns):
    """[row tiles, column tiles] bool: where some pair is visible."""
    padded = torch.zeros(-(-seen.shape[0] // rows) * rows, -(-seen.shape[1] // columns) * columns)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    return padded.unfold(0, rows, rows).unfold(1, columns, columns).amax((-1, -2)).bool()


@pytest.mark.parametrize(("causal", "window"), [(False, None), *((True, w) for w in WINDOWS)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), LENGTHS)
def test_bounds_are_exact(seqlen_q, seqlen_k, causal, window):
    mask = Mask(causal, window is not None, *map(constant, (seqlen_q, seqlen_k, window or 0)))
    seen = visible(seqlen_q, seqlen_k, causal, window)

    for query in range(seqlen_q + 2):
        for key in range(seqlen_k + 2):
            inside = query < seqlen_q and key < seqlen_k
            want = inside and bool(seen[query, key])
            assert decided(mask.visible(constant(query), constant(key))) == want

    wanted = tiles_seen(seen, ROWS, COLUMNS)
    for tile, row in enumerate(wanted):
        first, count = map(int, mask.key_tiles(constant(tile * ROWS), ROWS, COLUMNS))
        walked = [first <= column < first + count for column in range(len(row))]
        assert walked == row.tolist()
    for tile, column in enumerate(wanted.T):
        first, count = map(int, mask.query_tiles(constant(tile * COLUMNS), COLUMNS, ROWS))
        walked = [first <= row < first + count for row in range(len(column))]
        assert walked == column.tolist()

    beyond_q, beyond_k = len(wanted) * ROWS, wanted.shape[1] * COLUMNS
    assert not decided(mask.any_key_visible(constant(beyond_q), ROWS, COLUMNS))
    assert not decided(mask.any_query_visible(constant(beyond_k), COLUMNS, ROWS))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), LENGTHS)
def test_full_tile_needs_no_mask(seqlen_q, seqlen_k, window):
    mask = Mask(True, window is not None, *map(constant, (seqlen_q, seqlen_k, window or 0)))
    seen = visible(seqlen_q, seqlen_k, True, window)
    uncut = 0
    for query in range(0, seqlen_q, ROWS):
        for key in range(0, seqlen_k, COLUMNS):
            if not decided(mask.needs_mask(constant(query), ROWS, constant(key), COLUMNS)):
                uncut += 1
                block = seen[query : query + ROWS, key : key + COLUMNS]
                assert block.shape == (ROWS, COLUMNS)
                assert block.all()
    if window is None and seqlen_k >= 8 and seqlen_q >= ROWS:
        assert uncut, "the test is not cut short"
