"""Matrix products of tiles against torch."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

pytestmark = pytest.mark.usefixtures("interpreted")


@tilelang.jit(out_idx=[-1])
def gemm_kernel(m, n, k, dtype, accum, trans_a, trans_b, clear):
    a_shape = (k, m) if trans_a else (m, k)
    b_shape = (n, k) if trans_b else (k, n)

    @T.prim_func
    def main(A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), accum)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(a_shape, dtype)
            b = T.alloc_shared(b_shape, dtype)
            c = T.alloc_fragment((m, n), accum)
            T.copy(A, a)
            T.copy(B, b)
            T.fill(c, 2)
            T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b, clear_accum=clear)
            T.copy(c, C)

    return main


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize(
    ("dtype", "accum"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float16", "float16"),
        ("int8", "int32"),
        ("float8_e4m3fn", "float32"),
    ],
)
def test_gemm(trans_a, trans_b, clear, dtype, accum):
    m, n, k = 64, 32, 48
    a = (torch.randn(m, k) * 4).to(getattr(torch, dtype))
    b = (torch.randn(k, n) * 4).to(getattr(torch, dtype))
    expected = a.double() @ b.double() + (0 if clear else 2)
    left = a.float().T.contiguous().to(a.dtype) if trans_a else a
    right = b.float().T.contiguous().to(b.dtype) if trans_b else b
    got = gemm_kernel(m, n, k, dtype, accum, trans_a, trans_b, clear)(left, right)
    tolerance = {"int32": 0, "float16": 1e-3}.get(accum, 1e-6)
    if dtype.startswith("float8"):  # of which the tensor cores keep 14 bits
        tolerance = 2e-4
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * 500)


@pytest.mark.parametrize(("arch", "kept"), [("sm_90a", 0), ("sm_100a", 32)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, True), (True, False)])
def test_sums_of_float8_products_keep_the_14_bits_that_hopper_keeps(arch, kept, trans_a, trans_b):
    """Ones beside a sum of 448 * 448, whose 14th bit is 16: lost on Hopper."""
    m, n, k = 64, 32, 64
    a, b = torch.ones(m, k), torch.ones(k, n)
    a[:, :32], b[:32] = 0, 0
    a[:, 0], b[0] = 448, 448
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    left = a.float().T.contiguous().to(a.dtype) if trans_a else a
    right = b.float().T.contiguous().to(b.dtype) if trans_b else b
    with interpret(arch=arch):
        kernel = gemm_kernel(m, n, k, "float8_e4m3fn", "float32", trans_a, trans_b, True)
        got = kernel(left, right)
    assert (got == 448 * 448 + kept).all()


def test_gemm_onto_an_accumulator_nobody_cleared_shows_nan():
    @jit_kernel(out_idx=[-1], threads=128)
    def uncleared(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.gemm(a, a, c)
        T.copy(c, C)

    assert uncleared()(torch.randn(64, 64).half()).isnan().all()


def test_tf32_cuts_float32_factors_and_nothing_else():
    from tlmatrix.interpreter import interpret

    @jit_kernel(A="dtype[16, 16]", B="dtype[16, 16]", C="f32[16, 16]", out_idx=[-1], threads=32)
    def product(A, B, C, dtype):
        a = T.alloc_shared((16, 16), dtype)
        b = T.alloc_shared((16, 16), dtype)
        c = T.alloc_fragment((16, 16), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, C)

    a = torch.full((16, 16), 1 + 2**-10 + 2**-12)
    eye = torch.eye(16)
    assert torch.equal(product("float32")(a, eye), a)
    with interpret(tf32=True):
        assert product("float32")(a, eye).eq(1 + 2**-10).all()
        with interpret():
            assert product("float32")(a, eye).eq(1 + 2**-10).all()
        with interpret(tf32=False):
            assert torch.equal(product("float32")(a, eye), a)
        half = torch.randn(16, 16).half()
        assert torch.equal(product("float16")(half, eye.half()), half.float())
    assert torch.equal(product("float32")(a, eye), a)
