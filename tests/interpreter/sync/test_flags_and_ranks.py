"""Blocks that spin on flags in global memory, and several ranks that share buffers."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import SCHEDULES, interpret, run_ranks, scheduled
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


# A rank publishes its row, then sums the rows of all when they are there.
@jit_kernel(X="f32[world, 16]", F="i32[world]", rank="i32", epoch="i32", Y="f32[16]", threads=32)
def exchange(X, F, rank, epoch, Y, world):
    acc = T.alloc_fragment((16,), "float32")
    for i in T.Parallel(16):
        X[rank, i] = rank + epoch + i
    T.atomic_store(F[rank], epoch, "release")
    T.clear(acc)
    for r in T.serial(world):
        while T.atomic_load(F[r], "acquire") < epoch:
            T.evaluate(0)
        for i in T.Parallel(16):
            acc[i] += X[r, i]
    T.copy(acc, Y)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_buffers_and_wait_for_each_other(world):
    x, f = torch.zeros(world, 16), torch.zeros(world, dtype=torch.int32)

    def program(rank):
        found = []
        with interpret():
            y = torch.empty(16)
            exchange(world)(x, f, rank, 1, y)
            found.append(y)
        return found[0]

    expected = sum(rank + 1 + torch.arange(16.0) for rank in range(world))
    for y in run_ranks(world, program):
        torch.testing.assert_close(y, expected)


def test_a_world_needs_a_rank():
    with pytest.raises(ValueError, match="at least 1"):
        run_ranks(0, lambda rank: rank)


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
