"""Index patterns of parallel loops: strides, permutations, dynamic extents, lane-varying locals."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("length", [0, 1, 17])
def test_a_dynamic_extent(length):
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1], threads=32)
    def dynamic(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        for i in T.Parallel(n):
            Y[i] = X[i] * 2.0

    x = torch.randn(length)
    assert torch.equal(dynamic()(x), x * 2)


def test_strided_reversed_and_divided_indices():
    @jit_kernel(out_idx=[-1], threads=32)
    def patterns(X: T.Tensor((64,), "int32"), Y: T.Tensor((32, 4), "int32")):
        for i in T.Parallel(32):
            Y[i, 0] = X[i * 2 + 1]
            Y[i, 1] = X[63 - i]
            Y[i, 2] = X[i // 4 + i % 4]
            Y[31 - i, 3] = X[i]

    x = torch.randint(0, 1000, (64,), dtype=torch.int32)
    i = torch.arange(32)
    expected = torch.stack([x[i * 2 + 1], x[63 - i], x[i // 4 + i % 4], x[31 - i]], 1)
    assert torch.equal(patterns()(x), expected)


def test_the_same_axis_in_two_dimensions_is_a_diagonal():
    @jit_kernel(out_idx=[-1], threads=32)
    def diagonal(X: T.Tensor((16, 16), "float16"), Y: T.Tensor((16,), "float16")):
        for i in T.Parallel(16):
            Y[i] = X[i, i]

    x = torch.randn(16, 16).half()
    assert torch.equal(diagonal()(x), x.diagonal())


def test_three_axes_in_another_order_than_the_buffer():
    @jit_kernel(out_idx=[-1], threads=32)
    def permuted(X: T.Tensor((4, 6, 8), "bfloat16"), Y: T.Tensor((8, 4, 6), "bfloat16")):
        s = T.alloc_shared((8, 4, 6), "float32")
        for i, j, k in T.Parallel(4, 6, 8):
            s[k, i, j] = X[i, j, k]
        for i, j, k in T.Parallel(4, 6, 8):
            Y[k, i, j] = s[k, i, j]

    x = torch.randn(4, 6, 8).bfloat16()
    assert torch.equal(permuted()(x), x.permute(2, 0, 1))


def test_a_local_array_indexed_by_the_lane():
    @jit_kernel(out_idx=[-1], threads=32)
    def table(I: T.Tensor((16,), "int32"), Y: T.Tensor((16,), "float32")):  # noqa: E741
        local = T.alloc_local([4], "float32")
        for i in T.Parallel(16):
            for k in T.serial(4):
                local[k] = k * 10 + i
            local[I[i]] = -1.0
            Y[i] = local[0] + local[1] + local[2] + local[3]

    index = torch.randint(0, 4, (16,), dtype=torch.int32)
    rows = torch.arange(16)[:, None] + torch.arange(4) * 10.0
    rows[torch.arange(16), index.long()] = -1.0
    assert torch.equal(table()(index), rows.sum(1))


def test_a_conditional_update_of_a_variable_by_lane():
    @jit_kernel(out_idx=[-1], threads=32)
    def running_best(X: T.Tensor((16, 10), "float32"), Y: T.Tensor((16,), "int32")):
        best = T.alloc_var("float32")
        where = T.alloc_var("int32")
        for i in T.Parallel(16):
            best = -T.infinity("float32")
            where = 0
            for k in T.serial(10):
                if X[i, k] > best:
                    best = X[i, k]
                    where = k
            Y[i] = where

    x = torch.randn(16, 10)
    assert torch.equal(running_best()(x), x.argmax(1).int())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "bool", "float64"])
def test_every_memory_dtype_is_copied_bit_by_bit(dtype):
    @jit_kernel(X="dtype[40]", Y="dtype[40]", out_idx=[-1])
    def through(X, Y, dtype):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((32,), dtype)
            T.copy(X[bx * 32 : bx * 32 + 32], s)
            T.copy(s, Y[bx * 32 : bx * 32 + 32])

    x = (torch.randn(40) * 100).to(getattr(torch, dtype))
    assert torch.equal(through(dtype)(x), x)


def test_in_place_arguments_share_memory():
    @jit_kernel(threads=32)
    def shift(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
        for i in T.Parallel(8):
            Y[i] = X[i] + 1.0

    x = torch.zeros(8)
    shift()(x, x)
    assert x.eq(1).all()


def test_a_parallel_loop_that_reads_what_it_writes_elsewhere_sees_the_old_values():
    @jit_kernel(out_idx=[-1], threads=128)
    def symmetric(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        s = T.alloc_fragment((16, 16), "float32")
        T.copy(X, s)
        for i, j in T.Parallel(16, 16):
            s[i, j] = s[i, j] * 2.0 - s[j, i]
        T.copy(s, Y)

    x = torch.randn(16, 16)
    torch.testing.assert_close(symmetric()(x), x * 2 - x.T)
