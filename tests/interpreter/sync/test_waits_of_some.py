"""Waits and arrivals under a condition that a thread decides by values of its own."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import DeadlockError, interpret


def pipeline(arrives=True):
    """A producer and a consumer share tiles; the producer keeps in its own memory if there is one.

    Args:
        arrives: whether the consumer gives a stage back.
    """

    @jit_kernel(X="f32[4, 128]", count="i32[1]", Y="f32[4, 128]", out_idx=[-1], threads=256)
    def kernel(X, count, Y):
        s = T.alloc_shared((128,), "float32")
        mine = T.alloc_local((1,), "int32")
        turn = T.alloc_local((1,), "int32")
        full = T.alloc_barrier([128])
        empty = T.alloc_barrier([128])
        tx = T.get_thread_binding()
        if tx < 128:
            turn[0] = 0
            for k in T.serial(4):
                mine[0] = T.if_then_else(k < count[tx * 0], 1, 0)
                if mine[0] != 0:
                    T.barrier_wait(empty, (turn[0] & 1) ^ 1)
                    s[tx] = X[k, tx]
                    T.barrier_arrive(full)
                    turn[0] = turn[0] + 1
        else:
            for k in T.serial(4):
                if k < count[0]:
                    T.barrier_wait(full, k & 1)
                    Y[k, tx - 128] = s[tx - 128]
                    if arrives:
                        T.barrier_arrive(empty)
                else:
                    Y[k, tx - 128] = 0.0

    return kernel()


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_nobody_waits_where_no_thread_comes(count):
    x = torch.randn(4, 128)
    with interpret(sanitize=True, on_report="raise"):
        y = pipeline()(x, torch.tensor([count], dtype=torch.int32))
    assert torch.equal(y[:count], x[:count])
    assert y[count:].eq(0).all()


def test_those_who_come_still_wait():
    with interpret(), pytest.raises(DeadlockError, match="empty"):
        pipeline(arrives=False)(torch.randn(4, 128), torch.tensor([2], dtype=torch.int32))
