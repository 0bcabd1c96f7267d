"""Buffers that share memory: reshaped, reinterpreted, and reused by the next block."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


def test_shared_memory_does_not_keep_what_another_block_wrote():
    @jit_kernel(out_idx=[-1])
    def stale(C: T.Tensor((4, 8), "float32")):
        with T.Kernel(4, threads=32) as bx:
            s = T.alloc_shared((8,), "float32")
            if bx == 0:
                T.fill(s, 1)
            T.copy(s, C[bx, :])

    got = stale()()
    assert got[0].eq(1).all()
    assert got[1:].isnan().all()


def test_reshaped_and_reinterpreted_views_share_memory():
    @jit_kernel(out_idx=[-1], threads=128)
    def views(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "int32")):
        s = T.alloc_shared((8, 16), "float32")
        flat = T.reshape(s, [128])
        T.copy(X, s)
        for i in T.Parallel(128):
            flat[i] = flat[i] + i
        as_bits = T.view(s, [8, 16], "int32")
        T.copy(as_bits, Y)

    x = torch.randn(8, 16)
    expected = x + torch.arange(128).reshape(8, 16)
    assert torch.equal(views()(x).view(torch.float32), expected)


def test_bytes_in_shared_memory_are_seen_as_float8():
    @jit_kernel(Raw="u8[16, 32]", Out="f32[16, 32]", out_idx=[-1], threads=64)
    def kernel(Raw, Out, dtype):
        raw = T.alloc_shared((16, 32), "uint8")
        values = T.view(raw, (16, 32), dtype)
        T.copy(Raw, raw)
        for i, j in T.Parallel(16, 32):
            Out[i, j] = values[i, j]

    raw = torch.arange(512).remainder(256).to(torch.uint8).reshape(16, 32)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        expected = raw.view(getattr(torch, dtype)).float()
        assert torch.equal(kernel(dtype)(raw).nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_in_shared_memory_are_written_in_pairs_as_one_word(dtype):
    @jit_kernel(A="dtype[16, 64]", B="dtype[64, 8]", Out="f32[16, 8]", out_idx=[-1], threads=64)
    def kernel(A, B, Out, dtype):
        a = T.alloc_shared((16, 64), dtype)
        b = T.alloc_shared((64, 8), dtype)
        words = T.view(a, (16, 32), "uint32")
        given = T.view(A, (16, 32), "uint32")
        c = T.alloc_fragment((16, 8), "float32")
        for i, j in T.Parallel(16, 32):
            words[i, j] = given[i, j]
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, Out)

    a, b = (
        torch.randn(16, 64).to(getattr(torch, dtype)),
        torch.randn(64, 8).to(getattr(torch, dtype)),
    )
    with interpret(sanitize=True) as run:
        got = kernel(dtype)(a, b)
    assert not run.reports
    torch.testing.assert_close(got, a.float() @ b.float())


def test_memory_that_is_also_seen_as_bits_is_unwritten_at_first():
    @jit_kernel(Out="f32[8]", out_idx=[-1], threads=32)
    def kernel(Out, dtype):
        a = T.alloc_shared((8,), dtype)
        bits = T.view(a, (8,), "uint8" if "8" in dtype else "uint16")
        for i in T.Parallel(4):
            bits[i] = 0
        for i in T.Parallel(8):
            Out[i] = a[i]

    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        out = kernel(dtype)()
        assert not out[:4].any()
        assert out[4:].isnan().all()


def test_views_of_memory_that_each_thread_has():
    @jit_kernel(X="b16[32, 8]", Y="b16[32, 8]", Z="f32[32, 8]", threads=32)
    def kernel(X, Y, Z):
        tx = T.get_thread_binding()
        pairs = T.alloc_local((4,), T.bfloat16x2)
        elements = T.view(pairs, (8,), T.bfloat16)
        table = T.alloc_local((2, 4), "float32")
        flat = T.reshape(table, (8,))
        for j in T.unroll(4):
            pairs[j] = T.abs2(T.bfloat16x2(X[tx, j * 2], X[tx, j * 2 + 1]))
        for j in T.serial(8):
            flat[j] = X[tx, j] * 2
        for j in T.vectorized(8):
            Y[tx, j] = elements[j]
        for i in T.serial(2):
            for j in T.serial(4):
                Z[tx, i * 4 + j] = table[i, j]

    x, y, z = torch.randn(32, 8).bfloat16(), torch.empty(32, 8).bfloat16(), torch.empty(32, 8)
    kernel()(x, y, z)
    assert torch.equal(y, x.abs())
    assert torch.equal(z, x.float() * 2)
    with interpret(sanitize=True), pytest.raises(Unsupported, match="sanitizers of a view of"):
        kernel()(x, y, z)
