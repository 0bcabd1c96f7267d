"""Parallel loops: order of reads and writes, gathers."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


def test_transposed_access_in_a_parallel_loop():
    @jit_kernel(out_idx=[-1])
    def transpose(X: T.Tensor((40, 24), "float32"), Y: T.Tensor((24, 40), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((40, 24), "float32")
            T.copy(X, s)
            for i, j in T.Parallel(24, 40):
                Y[i, j] = s[j, i]

    x = torch.randn(40, 24)
    assert torch.equal(transpose()(x), x.T)


def test_a_parallel_loop_that_reads_what_it_writes_elsewhere_sees_the_old_values():
    @jit_kernel(out_idx=[-1])
    def symmetric(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_fragment((16, 16), "float32")
            T.copy(X, s)
            for i, j in T.Parallel(16, 16):
                s[i, j] = s[i, j] * 2.0 - s[j, i]
            T.copy(s, Y)

    x = torch.randn(16, 16)
    torch.testing.assert_close(symmetric()(x), x * 2 - x.T)


def test_gather_by_loaded_indices():
    @jit_kernel(out_idx=[-1])
    def gather(
        X: T.Tensor((50, 16), "float16"),
        Index: T.Tensor((32,), "int32"),
        Y: T.Tensor((32, 16), "float16"),
    ):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(32, 16):
                Y[i, j] = X[Index[i], j]

    x = torch.randn(50, 16).half()
    index = torch.randint(0, 50, (32,), dtype=torch.int32)
    assert torch.equal(gather()(x, index), x[index.long()])
