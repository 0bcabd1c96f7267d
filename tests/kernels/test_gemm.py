"""What specs of the GEMM operators cannot say: words of refusal, exactness, choices by shape."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.gemm import gemm, gemm_mixed
from tlmatrix_kernels.gemm.kernel import gemm_kernel
from tlmatrix_kernels.gemm.mixed import products
from tlmatrix_kernels.gemm.mixed_operator import PARTNERS
from tlmatrix_kernels.gemm.split_operator import MAX_SPLITS, MIN_STEPS, choose_splits

A, B = torch.ones(4, 8, dtype=torch.float16), torch.ones(8, 6, dtype=torch.float16)
INTEGERS = B.to(torch.int8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"c": A}, "c is only used with accumulate=True"),
        ({"variant": "tcgen06"}, r"variant must be one of .*wgmma_ws, got 'tcgen06'"),
        (
            {"a": torch.ones(4, 17).half(), "b": torch.ones(17, 8).half(), "variant": "tcgen05_ws"},
            r"a must have rows .* 8 elements \(16 bytes\) for variant 'tcgen05_ws', got 17: use v",
        ),
    ],
)
def test_gemm_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gemm(**({"a": A, "b": B} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": torch.ones(12)[::2]}, "scale must be contiguous, got stride 2"),
        ({"a": A.to(torch.int8), "scale": torch.ones(6), "out_dtype": torch.int32}, "out_dtype"),
    ],
)
def test_gemm_mixed_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gemm_mixed(**({"a": A, "b": INTEGERS} | arguments))


@pytest.mark.parametrize(("rows", "k"), [(64, 40), (64, 41), (1, 33)])
def test_rows_off_16_bytes_take_the_kernel_that_loads_any_row(rows, k):
    """A kernel for whole rows refuses others, so a wrong choice is an error, not wrong values."""
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in ((rows, k), (k, 72)))
    with interpret():
        assert (gemm(a, b) == a.shape[1]).all()
        whole = gemm_kernel("float16", "float16", False, False, False, True)
        c = torch.empty(a.shape[0], b.shape[1], dtype=torch.float16)
        if a.shape[1] % 8 == 0:
            whole(a, b, c)
            assert torch.equal(c, gemm(a, b))
        else:
            with pytest.raises(ValueError, match=r"shape"):
                whole(a, b, c)


def every_value(dtype):
    """All 256 of 8 bits that are numbers, zeros in the place of others; of 16 bits the integers."""
    numbers = torch.arange(-128, 128)
    if dtype.itemsize == 2:
        return numbers.to(dtype)
    values = numbers.to(torch.int8).view(dtype)
    return torch.where(values.double().isfinite(), values.double(), 0.0).to(dtype)


@pytest.mark.parametrize("a_dtype", PARTNERS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_8_bit_value_is_exact(a_dtype, arch):
    with interpret(arch=arch):
        for b_dtype in PARTNERS[a_dtype]:
            b = every_value(b_dtype).view(1, 256).expand(256, 256).T.contiguous()
            c = gemm_mixed(torch.eye(256).to(a_dtype), b, out_dtype=torch.float32)
            assert torch.equal(c.double(), b.double())
        a = every_value(a_dtype).view(256, 1).contiguous()
        c = gemm_mixed(a, torch.ones(1, 8).to(PARTNERS[a_dtype][0]), out_dtype=torch.float32)
        assert torch.equal(c.double(), a.double().expand(256, 8))


def test_factors_are_multiplied_in_a_dtype_that_holds_both_on_that_gpu():
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    assert products(e4m3, e4m3, 80) == "float16"
    assert products(e4m3, e4m3, 90) == e4m3
    assert products(e5m2, e4m3, 90) == "float16"
    assert products("bfloat16", e5m2, 90) == "bfloat16"
    assert products("int8", "int8", 80) == "int8"


def test_one_wave_has_enough_k_steps_per_block():
    assert choose_splits(64, 128, 64 * 1000, 132) == MAX_SPLITS, "one tile, a long K"
    assert choose_splits(512, 1024, 65536, 132) == 132 // 16, "what a wave holds"
    assert choose_splits(4096, 4096, 65536, 132) == 1, "tiles enough for every multiprocessor"
    assert choose_splits(16, 4096, 14336, 132) == 2, "a decoded batch: 64 tiles"
    assert choose_splits(1, 1, 128 * 3 * MIN_STEPS, 132) == 3, "no slice of too few steps"
    assert choose_splits(1, 1, 0, 132) == 1
    assert choose_splits(64, 4096, 8192, 148) > choose_splits(64, 4096, 8192, 64)
