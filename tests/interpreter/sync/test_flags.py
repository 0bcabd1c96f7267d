"""Blocks that spin on flags in global memory."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import SCHEDULES, interpret, scheduled
from tlmatrix.interpreter.errors import DeadlockError

pytestmark = pytest.mark.usefixtures("interpreted")


# Block k waits for the flag of its neighbour, then adds one to what the neighbour wrote.
@jit_kernel(X="f32[blocks + 1, 16]", F="i32[blocks + 1]")
def chained(X, F, blocks, backwards, drop=False):
    with T.Kernel(blocks, threads=32) as bx:
        me = blocks - bx if backwards else bx + 1
        tx = T.get_thread_binding()
        if tx == 0:
            while T.atomic_load(F[me - 1], "acquire") < 1:
                T.evaluate(0)
        T.sync_threads()
        for i in T.Parallel(16):
            X[me, i] = X[me - 1, i] + 1.0
        T.sync_threads()
        if tx == 0 and not drop:
            T.atomic_store(F[me], 1, "release")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_block_that_spins_lets_others_run(schedule, backwards):
    x, f = torch.zeros(6, 16), torch.zeros(6, dtype=torch.int32)
    f[0] = 1
    with scheduled(schedule):
        chained(5, backwards)(x, f)
    assert torch.equal(x, torch.arange(6.0)[:, None].expand(6, 16))


def test_a_flag_that_nobody_sets_is_a_deadlock():
    x, f = torch.zeros(6, 16), torch.zeros(6, dtype=torch.int32)
    f[0] = 1
    with pytest.raises(DeadlockError) as caught:
        chained(5, True, drop=True)(x, f)
    assert "spin" in str(caught.value)
    assert __file__ in str(caught.value)


@jit_kernel(out_idx=[0])
def swapped(Y: T.Tensor((2, 32), "float32")):
    """Two blocks hand each other a row through a workspace of the launch."""
    with T.Kernel(2, threads=32) as bx:
        W = T.alloc_global((2, 32), "float32")
        tx = T.get_thread_binding()
        W[bx, tx] = bx * 32 + tx
        T.sync_grid()
        Y[bx, tx] = W[1 - bx, tx]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_a_launch_share_a_workspace(schedule):
    with interpret(sanitize=True) as run, scheduled(schedule):
        got = swapped()()
    assert torch.equal(got, torch.arange(64.0).view(2, 32).flip(0))
    assert run.reports == []
