"""Float8 dtypes at their ends: infinities of `float8_e5m2`, powers of two of `float8_e8m0fnu`."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


@jit_kernel(A="source[8, columns]", B="float8_e5m2[8, columns]", out_idx=-1, threads=32)
def moved(A, B, source, columns, *, loop):
    tile = T.alloc_fragment((8, 16), source)
    T.copy(A[0, 0], tile)
    if loop:
        for i, j in T.Parallel(8, 16):
            B[i, j] = tile[i, j]
    else:
        T.copy(tile, B[0, 0])


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("columns", [16, 12])
@pytest.mark.parametrize("source", ["float8_e5m2", "float32"])
def test_a_conversion_saturates_and_a_copy_does_not(source, columns, loop):
    a = torch.full((8, columns), -torch.inf).to(getattr(torch, source))
    a[:, ::2] = 1.5
    out = moved(source, columns, loop=loop)(a).float()
    assert torch.all(out[:, ::2] == 1.5)
    assert torch.all(out[:, 1::2] == (-torch.inf if source == "float8_e5m2" else -57344))


def test_a_constant_may_be_infinite():
    @jit_kernel(out_idx=-1, threads=32)
    def kernel(B: T.Tensor((8,), "float8_e5m2")):
        for i in T.Parallel(8):
            B[i] = T.infinity("float8_e5m2")

    assert torch.all(torch.isinf(kernel()().float()))


def test_float8_e8m0fnu_holds_powers_of_two_rounded_up():
    @jit_kernel(A="f32[8]", B="float8_e8m0fnu[8]", C="f32[8]", out_idx=[1, 2], threads=32)
    def kernel(A, B, C):
        for i in T.Parallel(8):
            B[i] = A[i]
        for i in T.Parallel(8):
            C[i] = B[i]

    a = torch.tensor([1, 1.01, -3, 0.5, 0, 3e38, torch.inf, torch.nan])
    b, c = kernel()(a)
    assert b.dtype == torch.float8_e8m0fnu
    assert b.view(torch.uint8).tolist() == [127, 128, 129, 126, 0, 254, 254, 255]
    expected = torch.tensor([1, 2, 4, 0.5, 2.0**-127, 2.0**127, 2.0**127, torch.nan])
    assert torch.equal(c[:-1], expected[:-1])
    assert c[-1].isnan()
