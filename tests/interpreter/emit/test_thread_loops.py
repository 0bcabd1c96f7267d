"""Loops whose bounds depend on the thread index, and loops over the threads themselves."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


def test_each_thread_runs_as_many_iterations_as_it_says():
    @jit_kernel(threads=64)
    def kernel(Y: T.Tensor((64,), "int32"), Z: T.Tensor((64,), "int32")):
        tx = T.get_thread_binding()
        total = T.alloc_local((1,), "int32")
        total[0] = 0
        for i in T.serial(tx % 5):
            total[0] = total[0] + i + 1
        Y[tx] = total[0]
        total[0] = 0
        for i in T.serial(0, tx % 7, step=3):
            total[0] = total[0] * 100 + i + 1
        Z[tx] = total[0]

    y, z = torch.empty(64, dtype=torch.int32), torch.empty(64, dtype=torch.int32)
    kernel()(y, z)
    assert y.tolist() == [(t % 5) * (t % 5 + 1) // 2 for t in range(64)]
    ends = {0: 0, 1: 1, 2: 1, 3: 1, 4: 104, 5: 104, 6: 104}
    assert z.tolist() == [ends[t % 7] for t in range(64)]


@pytest.mark.parametrize("loop", ["serial", "unroll"])
def test_threads_share_elements_by_strides(loop):
    of = getattr(T, loop)

    @jit_kernel(threads=32)
    def kernel(X: T.Tensor((100,), "float32"), Y: T.Tensor((100,), "float32")):
        tx = T.get_thread_binding()
        for i in of(tx, 100, step=32):
            Y[i] = X[i] * 2

    x = torch.randn(100)
    y = torch.zeros(100)
    kernel()(x, y)
    assert torch.equal(y, x * 2)


def test_the_start_of_a_loop_differs_between_iterations_of_a_parallel_one():
    @jit_kernel(threads=32)
    def kernel(X: T.Tensor((8, 16), "int32"), Y: T.Tensor((8,), "int32")):
        for r in T.Parallel(8):
            for k in T.serial(r, 16):
                Y[r] = Y[r] + X[r, k]

    x, y = torch.randint(0, 99, (8, 16), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel()(x, y)
    assert y.tolist() == [int(x[r, r:].sum()) for r in range(8)]


def test_loops_over_threads_make_a_kernel():
    @jit_kernel
    def kernel(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((4, 64), "float32")):
        for b in T.thread_binding(4, thread="blockIdx.x"):
            for t in T.thread_binding(64, thread="threadIdx.x"):
                Y[b, 63 - t] = X[b, t] + t

    x, y = torch.randn(4, 64), torch.zeros(4, 64)
    kernel()(x, y)
    assert torch.equal(y, (x + torch.arange(64)).flip(1))
