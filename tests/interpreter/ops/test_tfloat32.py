"""Buffers of tfloat32: float32 memory, of which matrix products read 19 bits."""

import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(A="tfloat32[m, k]", B="tfloat32[k, n]", C="f32[m, n]", out_idx=[2], threads=128)
def product(A, B, C, m=32, n=32, k=64):
    a = T.alloc_shared((m, k), T.tfloat32)
    b = T.alloc_shared((k, n), T.tfloat32)
    c = T.alloc_fragment((m, n), "float32")
    T.copy(A, a)
    T.copy(B, b)
    T.clear(c)
    T.gemm(a, b, c)
    T.copy(c, C)


def cut(x):
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_products_of_tfloat32_read_the_leading_bits():
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    with interpret():
        found = product()(a, b)
    expected = cut(a).double() @ cut(b).double()
    assert (found - expected).abs().max() < 1e-4
    assert (found - a.double() @ b.double()).abs().max() > 1e-4


@jit_kernel(A="tfloat32[n]", B="f32[n]", out_idx=[1], threads=128)
def copied(A, B, n=128):
    a = T.alloc_fragment((n,), T.tfloat32)
    T.copy(A, a)
    for i in T.Parallel(n):
        B[i] = T.cast(a[i], "float32") * 2.0


def test_memory_of_tfloat32_keeps_all_bits():
    x = torch.randn(128)
    with interpret(sanitize=True):
        assert torch.equal(copied()(x), 2 * x)
