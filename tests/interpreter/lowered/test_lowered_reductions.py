"""Reductions over threads of several values that share barriers."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(X="f32[16, 8, 16]", Y="f32[16, 16]")
def sums_of_columns(X, Y):
    with T.Kernel(8, threads=128) as block:
        shared = T.alloc_shared((2, 8, 16), "float32")
        x = T.alloc_fragment((2, 8, 16), "float32")
        y = T.alloc_fragment((2, 16), "float32")
        T.copy(X[block * 2, 0, 0], shared)
        T.copy(shared, x)
        T.reduce_sum(x, y, dim=1, batch=2)
        T.copy(y, Y[block * 2, 0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_batch_of_two(arch):
    # 64 threads reduce of a block of 128: https://github.com/tile-ai/tilelang/issues/2524
    x, y = torch.randint(-9, 9, (16, 8, 16)).float(), torch.empty(16, 16)
    with interpret(arch=arch, lowered=True, sanitize=True) as run:
        sums_of_columns()(x, y)
    assert torch.equal(y, x.sum(1))
    assert run.reports == []
