"""Fragments without a layout are registers of each thread."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret

THREADS, ROWS = 32, 4


@jit_kernel(table="i32[THREADS * ROWS]", x="f32[1000]", out="f32[THREADS, ROWS]", out_idx=[-1])
def prefetched(table, x, out, *, copied=False):
    """out[t, r] = x[table[t * ROWS + r]], with the indices of a thread in a fragment."""
    with T.Kernel(1, threads=THREADS):
        tx = T.get_thread_binding()
        idx = T.alloc_fragment((2, ROWS), "int32")
        if copied:
            T.copy(table[0:ROWS], idx[1, 0:ROWS])
        for r in T.serial(ROWS):
            idx[0, r] = table[tx * ROWS + r]
        for r in T.serial(ROWS):
            out[tx, r] = x[idx[0, r]]


@pytest.mark.parametrize("sanitize", [False, True])
def test_each_thread_keeps_what_it_stored(sanitize):
    table = torch.randperm(1000)[: THREADS * ROWS].to(torch.int32)
    x = torch.randn(1000)
    with interpret(sanitize=sanitize):
        got = prefetched()(table, x)
    assert torch.equal(got, x[table.long()].reshape(THREADS, ROWS))


def test_a_fragment_that_a_tile_operation_shares_is_refused():
    table = torch.zeros(THREADS * ROWS, dtype=torch.int32)
    with interpret(), pytest.raises(Unsupported, match="the fragment idx, which threads index"):
        prefetched(copied=True)(table, torch.zeros(1000))
