"""Atomic operations on elements, vectors and tiles."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_atomic_add_of_single_elements_with_collisions(dtype):
    @jit_kernel(Index="i32[64]", H="dtype[8]")
    def histogram(Index, H, dtype):
        with T.Kernel(2, threads=32) as bx:
            for i in T.Parallel(32):
                T.atomic_add(H[Index[bx * 32 + i]], 1)

    index = torch.randint(0, 8, (64,), dtype=torch.int32)
    total = torch.zeros(8, dtype=getattr(torch, dtype))
    histogram(dtype)(index, total)
    assert torch.equal(total.long(), torch.bincount(index.long(), minlength=8))


def test_counts_of_lanes_wrap_past_the_largest_integer():
    @jit_kernel(N="i32[1]", P="i32[4]", threads=32)
    def numbered(N, P):
        for i in T.Parallel(4):
            P[i] = T.atomic_add(N[0], 1, return_prev=True)

    largest = 2**31 - 1
    n, p = torch.tensor([largest - 1], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    numbered()(n, p)
    assert p.tolist() == [largest - 1, largest, -largest - 1, -largest]
    assert n.item() == -largest + 1


def test_atomic_add_sums_over_lanes_that_do_not_show_in_the_index():
    @jit_kernel(threads=128)
    def rows(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16,), "float32")):
        for i, j in T.Parallel(16, 24):
            T.atomic_add(Y[i], X[i, j])

    x, y = torch.randn(16, 24), torch.ones(16)
    rows()(x, y)
    torch.testing.assert_close(y, x.sum(1) + 1)


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_tile_atomics_skip_what_is_outside(kind):
    @tilelang.jit
    def tile(kind):
        op = {"add": T.atomic_add, "max": T.atomic_max, "min": T.atomic_min}[kind]

        @T.prim_func
        def main(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((50, 32), "float32")):
            with T.Kernel(2, threads=128) as bx:
                s = T.alloc_shared((32, 32), "float32")
                T.copy(X[bx * 32, 0], s)
                op(Y[bx * 32 : bx * 32 + 32, :], s)

        return main

    x, y = torch.randn(64, 32), torch.randn(50, 32)
    expected = {"add": y + x[:50], "max": y.maximum(x[:50]), "min": y.minimum(x[:50])}[kind]
    tile(kind)(x, y)
    torch.testing.assert_close(y, expected)


def test_vector_atomics_and_previous_values():
    @jit_kernel(X="f32[8, 8]", Y="f32[8, 8]", N="i32[1]", P="i32[16]", out_idx=[-1], threads=32)
    def pairs(X, Y, N, P):
        s = T.alloc_shared((8, 8), "float32")
        T.copy(X, s)
        for i, j in T.Parallel(8, 4):
            T.atomic_addx2(Y[i, j * 2], s[i, j * 2])
        for i in T.Parallel(16):
            P[i] = T.atomic_add(N[0], 2, return_prev=True)

    x, y, n = torch.randn(8, 8), torch.randn(8, 8), torch.tensor([5], dtype=torch.int32)
    expected = x + y
    previous = pairs()(x, y, n)
    torch.testing.assert_close(y, expected)
    assert sorted(previous.tolist()) == list(range(5, 37, 2))
    assert n.item() == 37
