"""Rows that TMA gathers and scatters."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret, scheduled

pytestmark = pytest.mark.usefixtures("interpreted")


@jit_kernel(X="f16[64, 32]", At="i32[8]", Y="f16[64, 32]", threads=128)
def moved(X, At, Y, waits=True):
    tile = T.alloc_shared((4, 16), "float16")
    come = T.alloc_barrier(1)
    rows = [At[k] for k in range(4)]
    to = [At[k] for k in range(4, 8)]
    if T.shuffle_elect(128):
        T.mbarrier_expect_tx(come, T.tma_gather4_bytes(16, "float16"))
        T.tma_gather4(X, tile, 16, rows, barrier=come)
        T.barrier_arrive(come)
    if waits:
        T.mbarrier_wait_parity(come, 0)
    if T.shuffle_elect(128):
        T.tma_scatter4(tile, Y, 8, to)
        T.tma_store_arrive()
    T.tma_store_wait(0, read=False)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "adversarial"])
def test_four_rows_go_to_four_others(schedule):
    x, y = torch.randn(64, 32).half(), torch.zeros(64, 32, dtype=torch.float16)
    # A row outside reads as zeros and is not written.
    index = torch.tensor([5, 63, 70, 9, 8, 1, 2, 64], dtype=torch.int32)
    with interpret(arch="sm_100a"), scheduled(schedule, seed=1):
        moved()(x, index, y)
    right = torch.zeros(64, 32, dtype=torch.float16)
    right[8, 8:24], right[1, 8:24] = x[5, 16:], x[63, 16:]
    assert torch.equal(y, right)


def test_rows_that_nothing_waits_for_are_a_race():
    index = torch.arange(8, dtype=torch.int32)
    for waits in (True, False):
        x, y = torch.randn(64, 32).half(), torch.zeros(64, 32, dtype=torch.float16)
        with interpret(arch="sm_100a", sanitize=True) as session:
            moved(waits)(x, index, y)
        assert (
            any((r.sanitizer, r.buffer) == ("races", "tile") for r in session.reports) is not waits
        )
