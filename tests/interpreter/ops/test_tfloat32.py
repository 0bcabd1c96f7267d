"""Buffers of tfloat32: float32 memory, of which matrix products read 19 bits."""

import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import interpret


@tilelang.jit(out_idx=[2])
def product(m=32, n=32, k=64):
    @T.prim_func
    def main(
        A: T.Tensor((m, k), T.tfloat32),
        B: T.Tensor((k, n), T.tfloat32),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((m, k), T.tfloat32)
            b = T.alloc_shared((k, n), T.tfloat32)
            c = T.alloc_fragment((m, n), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C)

    return main


def cut(x):
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_products_of_tfloat32_read_the_leading_bits():
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    with interpret():
        found = product()(a, b)
    expected = cut(a).double() @ cut(b).double()
    assert (found - expected).abs().max() < 1e-4
    assert (found - a.double() @ b.double()).abs().max() > 1e-4


@tilelang.jit(out_idx=[1])
def copied(n=128):
    @T.prim_func
    def main(A: T.Tensor((n,), T.tfloat32), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((n,), T.tfloat32)
            T.copy(A, a)
            for i in T.Parallel(n):
                B[i] = T.cast(a[i], "float32") * 2.0

    return main


def test_memory_of_tfloat32_keeps_all_bits():
    x = torch.randn(128)
    with interpret(sanitize=True):
        assert torch.equal(copied()(x), 2 * x)
