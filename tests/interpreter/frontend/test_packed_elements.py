"""Elements of four bits, two in a byte of a tensor: `float4_e2m1fn` and `int4`."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import ArgumentError, Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")

MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
VALUES = torch.tensor(MAGNITUDES + [-x for x in MAGNITUDES])


def halves(packed):
    """The codes of packed elements: the low half of a byte is the first."""
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()


def packed(codes):
    """Codes from 0 to 15 (or -8 to 7), two in a byte."""
    codes = codes.to(torch.uint8) & 15
    return codes[..., ::2] | codes[..., 1::2] << 4


def every_pair():
    """The sixteen values in all pairs, as [16, 32] elements."""
    return torch.arange(256, dtype=torch.uint8).reshape(16, 16)


@jit_kernel(A="float4_e2m1fn[16, columns]", B="out[16, columns]")
def scaled(A, B, factor, out="float4_e2m1fn", scope=T.alloc_shared):
    columns = A.shape[1]
    with T.Kernel(T.ceildiv(columns, 16), threads=32) as bx:
        tile = scope((16, 16), "float4_e2m1fn")
        scaled = T.alloc_fragment((16, 16), "float32")
        T.copy(A[0, bx * 16], tile)
        for i, j in T.Parallel(16, 16):
            scaled[i, j] = T.cast(tile[i, j], "float32") * factor
        T.copy(scaled, B[0, bx * 16])


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.int8, torch.uint8])
@pytest.mark.parametrize("scope", [T.alloc_shared, T.alloc_fragment])
def test_a_tensor_of_bytes_has_two_float4_elements_in_each(dtype, scope):
    a, b = every_pair(), torch.empty(16, 32)
    scaled(3, "float32", scope)(a.view(dtype), b)
    assert torch.equal(b, VALUES[halves(a)] * 3)


def test_float4_is_rounded_to_the_nearest_ties_to_even_and_saturates():
    a, b = every_pair(), torch.empty(16, 16, dtype=torch.float4_e2m1fn_x2)
    scaled(1.25)(a, b)
    of = [0, 0.5, 1, 2, 2, 4, 4, 6]  # 0.625 1.25 1.875 2.5 3.75 5 7.5: 2.5 and 5 are ties
    expected = torch.tensor(of + [-x for x in of])
    assert torch.equal(VALUES[halves(b)], expected[halves(a)])


def test_rows_of_a_larger_tensor_are_taken_by_their_stride():
    strides = T.dynamic("row")

    @jit_kernel(threads=32)
    def kernel(
        A: T.StridedTensor((16, 16), (strides, 1), "float4_e2m1fn"),
        B: T.Tensor((16, 16), "float32"),
    ):
        T.copy(A, B)

    a, b = every_pair(), torch.empty(16, 16)
    kernel()(a[:, 8:], b)
    assert torch.equal(b, VALUES[halves(a)][:, 16:])


@jit_kernel(A="int4[32, 64]", B="int4[16, 64]", C="i32[32, 16]", out_idx=-1)
def product(A, B, C):
    with T.Kernel(2, threads=128) as bx:
        a, b = T.alloc_shared((16, 64), "int4"), T.alloc_shared((16, 64), "int4")
        c = T.alloc_fragment((16, 16), "int32")
        T.copy(A[bx * 16, 0], a)
        T.copy(B, b)
        T.clear(c)
        T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[bx * 16, 0])


def test_a_product_of_int4_is_exact():
    a, b = torch.randint(-8, 8, (32, 64)), torch.randint(-8, 8, (16, 64))
    c = product()(packed(a).view(torch.int8), packed(b).view(torch.int8))
    assert torch.equal(c.long(), a @ b.T)


def test_an_output_of_float4_is_allocated_with_half_of_the_columns():
    @jit_kernel(out_idx=-1, threads=32)
    def kernel(A: T.Tensor((4, 8), "float32"), B: T.Tensor((4, 8), "float4_e2m1fn")):
        T.copy(A, B)

    a = VALUES[torch.randint(16, (4, 8))]
    b = kernel()(a)
    assert b.dtype == torch.float4_e2m1fn_x2
    assert b.shape == (4, 4)
    assert torch.equal(VALUES[halves(b)], a)


def test_an_element_that_is_not_written_is_reported():
    @jit_kernel(threads=32)
    def kernel(B: T.Tensor((16, 16), "float4_e2m1fn")):
        tile = T.alloc_shared((16, 16), "float4_e2m1fn")
        for i, j in T.Parallel(16, 15):
            tile[i, j] = 1.0
        T.copy(tile, B)

    with interpret(sanitize=True) as session:
        kernel()(torch.zeros(16, 8, dtype=torch.uint8))
    assert "tile[0, 15] is read, never written" in str(session.reports[0])


def test_the_last_dim_of_an_argument_counts_elements():
    with pytest.raises(ArgumentError, match=r"shape\[1\] = 64, got 128.*two elements in a byte"):
        product()(torch.zeros(32, 64, dtype=torch.int8), torch.zeros(16, 32, dtype=torch.int8))


def test_arithmetic_and_conversions_to_int4_are_refused():
    @jit_kernel(A="i4[16]", B="i4[16]", threads=32)
    def kernel(A, B, convert):
        for i in T.Parallel(16):
            if convert:
                B[i] = T.cast(T.cast(A[i], "int32") * 3, "int4")
            else:
                B[i] = A[i] + A[i]

    a = torch.zeros(8, dtype=torch.int8)
    for convert in (False, True):
        with pytest.raises(Unsupported, match="int4"):
            kernel(convert)(a, a)


def test_a_view_of_bytes_as_float4_is_refused():
    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((16, 8), "uint8"), B: T.Tensor((16, 16), "float4_e2m1fn")):
        tile = T.alloc_shared((16, 8), "uint8")
        T.copy(A, tile)
        T.copy(T.view(tile, (16, 16), "float4_e2m1fn"), B)

    bytes_of = torch.zeros(16, 8, dtype=torch.uint8)
    with pytest.raises(Unsupported, match=r"a view of tile \(uint8\) as float4_e2m1fn"):
        kernel()(bytes_of, bytes_of)


def test_a_tensor_of_pairs_has_an_element_for_each_byte():
    @jit_kernel(out_idx=[-1])
    def kernel(A: T.Tensor((16, 16), T.float4_e2m1fnx2), B: T.Tensor((16, 16), T.float4_e2m1fnx2)):
        with T.Kernel(16, threads=32) as bx:
            tile = T.alloc_shared((16,), T.float4_e2m1fnx2)
            T.copy(A[15 - bx, :], tile)
            T.copy(tile, B[bx, :])

    a = every_pair()
    b = kernel()(a.view(torch.float4_e2m1fn_x2))
    assert b.dtype == torch.float4_e2m1fn_x2
    assert torch.equal(b.view(torch.uint8), a.flip(0))


@pytest.mark.parametrize("scope", [T.alloc_shared, T.alloc_fragment])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_memory_seen_as_bytes(dtype, scope):
    @jit_kernel(A="f32[16, 32]", B="dtype[20, 18]", C="f32[16, 32]", threads=32)
    def kernel(A, B, C):
        tile = scope((16, 32), "float4_e2m1fn")
        seen = T.view(tile, (16, 16), dtype=dtype)
        for i, j in T.Parallel(16, 32):
            tile[i, j] = T.cast(A[i, j], "float4_e2m1fn")
        T.copy(seen, B[4:20, 1:17])
        for i, j in T.Parallel(8, 16):
            seen[i, j] = seen[i, j] ^ T.cast(8, dtype)
        T.copy(tile, C)

    a = VALUES[torch.randint(0, 16, (16, 32))]
    b, c = torch.zeros(20, 18, dtype=getattr(torch, dtype)), torch.empty(16, 32)
    kernel()(a, b, c)
    codes = halves(b[4:, 1:17])
    assert torch.equal(VALUES[codes], a)
    assert torch.equal(codes > 7, a.signbit())
    assert not b[:4].any()
    assert not b[:, 17].any()
    right = a.clone()
    right[:8, ::2] *= -1
    assert torch.equal(c, right)
