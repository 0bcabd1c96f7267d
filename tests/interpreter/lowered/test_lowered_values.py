"""Lowered code computes what its kernel means, for sm_80 and sm_90a."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret

ARCHITECTURES = ("sm_80", "sm_90a")


@jit_kernel(A="f16[m, k]", B="f16[k, n]", C="f16[m, n]")
def product(A, B, C, m, n, k, arch):
    with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
            if arch == "sm_90a":
                T.ptx_commit_group()  # all threads of the producer arrive
            T.copy(A[by * 64, step * 32], a)
            T.copy(B[step * 32, bx * 64], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])


@jit_kernel(X="f32[m, 200]", Y="f32[m]")
def row_sums(X, Y, m):
    with T.Kernel(m, threads=128) as row:
        x = T.alloc_fragment((256,), "float32")
        total = T.alloc_fragment((1,), "float32")
        for i in T.Parallel(256):
            x[i] = T.if_then_else(i < 200, X[row, i], 0.0)
        T.reduce_sum(x, total, dim=0)
        if T.get_thread_binding() == 0:
            Y[row] = total[0]


@jit_kernel(X="i32[n]", Y="i32[4]")
def histogram(X, Y, n):
    with T.Kernel(T.ceildiv(n, 256), threads=128) as block:
        for i in T.Parallel(256):
            if block * 256 + i < n:
                T.atomic_add(Y[X[block * 256 + i]], 1)


@jit_kernel(X="f32[blocks, 64, 64]", Y="f32[64, 64]")
def sum_of_tiles(X, Y, blocks):
    with T.Kernel(blocks, threads=128) as block:
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X[block, 0, 0], tile)
        T.atomic_add(Y, tile, use_tma=True)


@jit_kernel(A="f32[64, 64]", B="tfloat32[64, 64]", C="f32[64, 64]", N="i32[64]", threads=128)
def clamped_product(A, B, C, N):
    a = T.alloc_fragment((64, 64), T.tfloat32)
    b = T.alloc_shared((64, 64), T.tfloat32)
    c = T.alloc_fragment((64, 64), "float32")
    T.copy(B, b)
    T.clear(c)
    for i, j in T.Parallel(64, 64):
        a[i, j] = T.clamp(A[i, j] * 2, -3.0, 4.0)
    T.gemm(a, b, c, transpose_B=True)
    T.copy(c, C)
    for i in T.Parallel(64):
        N[i] = T.clamp(N[i], -2, 5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_vectors_of_tf32_and_clamped_values(arch):
    a, b = torch.randint(-3, 4, (2, 64, 64)).float()
    c, n = torch.full((64, 64), float("nan")), torch.arange(-32, 32, dtype=torch.int32)
    with interpret(arch=arch, lowered=True, sanitize=True) as run:
        clamped_product()(a, b, c, n)
    assert run.reports == []
    assert torch.equal(c, (a * 2).clamp(-3, 4) @ b.T)
    assert torch.equal(n, torch.arange(-32, 32, dtype=torch.int32).clamp(-2, 5))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_pipelined_product_with_tails(arch):
    # 16-byte rows, so that sm_90a copies by TMA and multiplies with wgmma.
    a, b = torch.randint(-3, 4, (72, 80)).half(), torch.randint(-3, 4, (80, 136)).half()
    c = torch.full((72, 136), float("nan")).half()
    with interpret(arch=arch, lowered=True, sanitize=True) as run:
        product(72, 136, 80, arch)(a, b, c)
    assert torch.equal(c.float(), a.float() @ b.float())
    assert run.reports == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_reduction_over_all_warps_of_a_block(arch):
    x, y = torch.randint(-9, 9, (3, 200)).float(), torch.empty(3)
    with interpret(arch=arch, lowered=True, sanitize=True) as run:
        row_sums(3)(x, y)
    assert torch.equal(y, x.sum(1))
    assert run.reports == []


def test_atomics_of_all_threads_of_several_blocks():
    x, y = torch.randint(0, 4, (700,), dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with interpret(arch="sm_80", lowered=True, sanitize=True) as run:
        histogram(700)(x, y)
    assert torch.equal(y, torch.bincount(x, minlength=4).int())
    assert run.reports == []


@jit_kernel(C="i32[1]", Y="i32[n]")
def tickets(C, Y, n):
    with T.Kernel(n // 64, threads=64) as block:
        thread = T.get_thread_binding()
        Y[block * 64 + thread] = T.atomic_add(C[0], 1, return_prev=True)


@jit_kernel(X="f16[256]", Y="f16[256]")
def ordered_sums(X, Y):
    with T.Kernel(2, threads=128):
        x = T.alloc_fragment((256,), "float16")
        T.copy(X, x)
        T.atomic_add(Y, x, memory_order="acq_rel")


def test_atomics_of_one_cell_return_what_each_lane_found():
    c, y = torch.zeros(1, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    with interpret(arch="sm_80", lowered=True, sanitize=True) as run:
        tickets(128)(c, y)
    assert y.sort().values.tolist() == list(range(128))
    assert run.reports == []


def test_vectors_of_an_atomic_with_a_memory_order():
    x, y = torch.randint(0, 9, (256,)).half(), torch.zeros(256).half()
    with interpret(arch="sm_80", lowered=True, sanitize=True) as run:
        ordered_sums()(x, y)
    assert torch.equal(y, x * 2)
    assert run.reports == []


@jit_kernel(X="int4[128]", Y="int4[128]", threads=128)
def packed_copy(X, Y):
    part = T.alloc_shared((128,), "int4")
    T.copy(X, part)
    T.copy(part, Y)


def test_elements_smaller_than_a_byte_are_refused():
    x, y = torch.zeros(64, dtype=torch.int8), torch.zeros(64, dtype=torch.int8)
    with (
        interpret(arch="sm_80", lowered=True),
        pytest.raises(Unsupported, match="two elements of int4 a byte, in lowered code"),
    ):
        packed_copy()(x, y)


def test_tiles_that_blocks_add_to_one_place_by_tma_are_all_added():
    x, y = torch.randint(-9, 9, (5, 64, 64)).float(), torch.zeros(64, 64)
    with interpret(arch="sm_90a", lowered=True, sanitize=True) as run:
        sum_of_tiles(5)(x, y)
    assert torch.equal(y, x.sum(0))
    assert run.reports == []


@jit_kernel(X="f16[n]", Y="f16[4]")
def sums_of_four(X, Y, n):
    with T.Kernel(T.ceildiv(n, 128), threads=128) as block:
        for i in T.Parallel(128):
            if block * 128 + i < n:
                T.atomic_add(Y[i // 2 % 4], X[block * 128 + i])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_threads_add_to_a_half_one_after_another(arch):
    x, y = torch.randint(-4, 5, (300,)).half(), torch.ones(4).half()
    with interpret(arch=arch, lowered=True):
        sums_of_four(300)(x, y)
    assert torch.equal(
        y, 1 + torch.stack([x[torch.arange(300) // 2 % 4 == k].sum() for k in range(4)])
    )


@jit_kernel(X="i8[64, 4]", Y="f16[64, 8]", Z="f32[64]", M="u32[64]", threads=64)
def decoded(X, Y, Z, M, source):
    thread = T.get_thread_binding()
    packed = T.alloc_local((4,), "int8")
    unpacked = T.alloc_local((8,), "float16")
    T.import_source(source)
    for k in T.vectorized(4):
        packed[k] = X[thread, k]
    T.call_extern(
        "handle", "decode_i4u_to_f16", T.access_ptr(packed, "r"), T.access_ptr(unpacked, "w"), 8
    )
    for k in T.vectorized(8):
        Y[thread, k] = unpacked[k]
    Z[thread] = T.call_extern("float32", "fmaf", 2.0, T.cast(unpacked[0], "float32"), 1.0)
    M[thread] = 0
    if thread % 3 == 0:
        M[thread] = T.call_extern("uint32", "__activemask")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_functions_by_their_names(arch):
    """Of CUDA, and of a source of TileLang's that the kernel imports."""
    source = "0x000f000f isSigned ? 0x64086408 : 0x64006400 i4s >> (4 * i)"
    x, y = torch.randint(-128, 128, (64, 4)).to(torch.int8), torch.zeros(64, 8).half()
    z, m = torch.zeros(64), torch.zeros(64, dtype=torch.uint32)
    with interpret(arch=arch, lowered=True, sanitize=True) as run:
        decoded(source)(x, y, z, m)
    assert run.reports == []
    # Element k is nibble k / 2 of the lower or upper half of a word.
    nibbles = torch.stack([x.int() & 15, x.int() >> 4 & 15], 2).reshape(64, 2, 4)
    assert torch.equal(y, nibbles.swapaxes(1, 2).reshape(64, 8).half())
    assert torch.equal(z, 2 * y[:, 0].float() + 1)
    bits = [sum(1 << k for k in range(32) if (first + k) % 3 == 0) for first in (0, 32)]
    expected = torch.tensor(bits).repeat_interleave(32) * (torch.arange(64) % 3 == 0)
    assert torch.equal(m.long(), expected)
    with interpret(arch=arch, lowered=True), pytest.raises(Unsupported, match="decode_i4u_to_f16"):
        decoded("// another function of this name")(x, y, z, m)
