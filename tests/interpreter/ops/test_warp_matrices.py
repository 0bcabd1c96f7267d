"""Matrix instructions of a warp, in the fragments and layouts of the PTX ISA."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret
from tlmatrix.interpreter.errors import InterpreterError

pytestmark = pytest.mark.usefixtures("interpreted")

_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32", "int8": "int8"}
_SHORT |= {"int32": "int32", "float8_e4m3fn": "e4m3"}


def short(dtype, factor):
    return "fp32" if dtype == "float32" and not factor else _SHORT[dtype]


@tilelang.jit(out_idx=[-1])
def product(k, dtype, accum, warps=1):
    """C = A @ B for A [16, k] and B [8, k] in row order, by every warp for its rows of C."""
    bits = {"float16": 16, "bfloat16": 16, "float32": 32}.get(dtype, 8)
    width = 128 // bits
    matrices = k // width
    shape = f"m16n8k{k}"
    names = (short(dtype, True), short(dtype, True), short(accum, False))

    @T.prim_func
    def main(
        A: T.Tensor((16 * warps, k), dtype),
        B: T.Tensor((8, k), dtype),
        C: T.Tensor((16 * warps, 8), accum),
    ):
        with T.Kernel(1, threads=32 * warps):
            tx = T.get_thread_binding()
            lane = tx % 32
            warp = tx // 32
            a_shared = T.alloc_shared((16 * warps, k), dtype)
            b_shared = T.alloc_shared((8, k), dtype)
            a = T.alloc_local((k // 2,), dtype)
            b = T.alloc_local((k // 4,), dtype)
            c = T.alloc_local((4,), accum)
            T.copy(A, a_shared)
            T.copy(B, b_shared)
            T.clear(c)
            T.ptx_ldmatrix(
                T.bool(False),
                2 * matrices,
                T.access_ptr(a_shared[warp * 16 + lane % 16, lane // 16 * width], "r", width),
                T.access_ptr(a[0], "w", k // 2),
            )
            T.ptx_ldmatrix(
                T.bool(False),
                matrices,
                T.access_ptr(b_shared[lane % 8, lane // 8 % matrices * width], "r", width),
                T.access_ptr(b[0], "w", k // 4),
            )
            T.ptx_mma(
                accum, shape, "row", "col", *names, a.data, 0, b.data, 0, c.data, 0, T.bool(False)
            )
            for i in T.serial(4):
                C[warp * 16 + lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = c[i]

    return main


CASES = [
    (16, "float16", "float32"),
    (8, "float16", "float16"),
    (16, "bfloat16", "float32"),
    (8, "float32", "float32"),
    (32, "int8", "int32"),
    (32, "float8_e4m3fn", "float32"),
]


@pytest.mark.parametrize(("k", "dtype", "accum"), CASES)
def test_fragments_loaded_with_ldmatrix_multiply_as_matrices(k, dtype, accum):
    a = torch.randint(-4, 5, (32, k)).to(getattr(torch, dtype))
    b = torch.randint(-4, 5, (8, k)).to(getattr(torch, dtype))
    c = product(k, dtype, accum, warps=2)(a, b)
    assert torch.equal(c.double(), a.double() @ b.double().T)


def test_tf32_cuts_the_factors_where_asked():
    a, b = torch.full((16, 8), 1 + 2**-12), torch.ones(8, 8)
    assert torch.equal(product(8, "float32", "float32")(a, b), a @ b.T)
    with interpret(tf32=True):
        assert torch.equal(product(8, "float32", "float32")(a, b), torch.full((16, 8), 8.0))


# What each lane gets of one 8x8 matrix.
@jit_kernel(A="f16[8, 8]", Out="f16[32, 2]", out_idx=[-1], threads=32)
def moved(A, Out, transposed, inside=True, odd=False):
    tx = T.get_thread_binding()
    shared = T.alloc_shared((8, 8), "float16")
    mine = T.alloc_local((2,), "float16")
    T.copy(A, shared)
    if not odd or tx < 7:
        T.ptx_ldmatrix(
            T.bool(transposed),
            1,
            T.access_ptr(shared[tx % 8, 0 if inside else 4], "r", 8),
            T.access_ptr(mine[0], "w", 2),
        )
    for i in T.serial(2):
        Out[tx, i] = mine[i]


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_lane_t_the_two_elements_of_row_t_over_4(transposed):
    a = torch.arange(64.0).reshape(8, 8).half()
    got = moved(transposed)(a)
    assert torch.equal(got, (a.T if transposed else a).reshape(32, 2))


def test_a_row_outside_shared_memory_is_an_error():
    with pytest.raises(InterpreterError, match=r"shared\[0, 4:12\], but shared has shape \(8, 8\)"):
        moved(False, inside=False)(torch.zeros(8, 8).half())


def test_some_lanes_of_a_warp_alone_are_an_error():
    with pytest.raises(InterpreterError, match="by some lanes of a warp only"):
        moved(False, odd=True)(torch.zeros(8, 8).half())


def test_more_matrices_than_there_are_lanes_are_refused():
    with pytest.raises(Unsupported, match=r"T\.ptx_ldmatrix from a_shared"):
        product(64, "int8", "int32")
