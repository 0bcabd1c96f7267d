"""Threads and blocks that end early (`T.thread_return`) do nothing of what follows."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


@jit_kernel(X="f32[128]", kind="i32[4]", Y="f32[128]")
def blocks_that_return(X, kind, Y):
    with T.Kernel(4, threads=32) as bx:
        if kind[bx] == 0:
            for i in T.Parallel(32):
                Y[bx * 32 + i] = -1.0
            T.thread_return()
        s = T.alloc_shared((32,), "float32")
        T.copy(X[bx * 32], s)
        if kind[bx] == 2:
            if X[bx * 32] > 0:
                T.thread_return()
            for i in T.Parallel(32):
                s[i] = s[i] * 2.0
        T.copy(s, Y[bx * 32])


def test_a_block_that_returns_leaves_the_rest_undone():
    x, y = torch.arange(128.0) - 40, torch.full((128,), 7.0)
    blocks_that_return()(x, torch.tensor([0, 2, 2, 1], dtype=torch.int32), y)
    rows = torch.stack([torch.full((32,), -1.0), x[32:64] * 2, torch.full((32,), 7.0), x[96:]])
    assert torch.equal(y.view(4, 32), rows)


@pytest.mark.parametrize("n", [1, 100, 128])
def test_threads_past_the_end_return_before_they_read(n):
    @jit_kernel(X="f32[n]", Y="f32[n]", out_idx=[-1])
    def doubled(X, Y, n):
        with T.Kernel(4, threads=32) as bx:
            index = bx * 32 + T.get_thread_binding()
            if index >= n:
                T.thread_return()
            twice = T.alloc_local((1,), "float32")
            twice[0] = X[index] * 2.0
            Y[index] = twice[0]

    x = torch.randn(n)
    with interpret(sanitize=True, on_report="raise"):
        assert torch.equal(doubled(n)(x), x * 2)


def test_a_guard_that_lets_one_thread_too_many_go_on_is_found():
    @jit_kernel(X="f32[n]", Y="f32[n]", threads=32)
    def doubled(X, Y, n):
        tx = T.get_thread_binding()
        if tx >= n - 1:  # HERE: the last element is left out
            T.thread_return()
        Y[tx] = X[tx] * 2.0

    with interpret(sanitize=True, on_report="keep") as run:
        doubled(20)(torch.randn(20), torch.empty(20))
    assert [(r.sanitizer, r.buffer, r.index) for r in run.reports] == [("unwritten", "Y", (19,))]


def test_a_return_inside_a_loop_is_refused_with_its_line():
    @jit_kernel(threads=32)
    def looping(X: T.Tensor((8,), "float32")):
        for i in T.serial(8):
            if X[i] > 0:
                T.thread_return()
            X[i] = 1.0

    with pytest.raises(Unsupported, match=r"T.thread_return inside a loop \(.*early_returns.py:\d"):
        looping()
