"""Products of 8-bit operands: every value is widened exactly; what makes no sense is refused."""

import itertools

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.gemm import gemm_mixed
from tlmatrix_kernels.gemm.mixed import products
from tlmatrix_kernels.gemm.mixed_operator import PARTNERS

PAIRS = [(a, b) for a, partners in PARTNERS.items() for b in partners]


def every_value(dtype):
    """All 256 of 8 bits that are numbers, zeros in the place of others; of 16 bits the integers."""
    numbers = torch.arange(-128, 128)
    if dtype.itemsize == 2:
        return numbers.to(dtype)
    values = numbers.to(torch.int8).view(dtype)
    return torch.where(values.double().isfinite(), values.double(), 0.0).to(dtype)


@pytest.mark.parametrize(("a_dtype", "b_dtype"), PAIRS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_8_bit_value_of_b_is_exact(a_dtype, b_dtype, arch):
    a = torch.eye(256).to(a_dtype)
    b = every_value(b_dtype).view(1, 256).expand(256, 256).T.contiguous()
    with interpret(arch=arch):
        c = gemm_mixed(a, b, out_dtype=torch.float32)
    assert torch.equal(c.double(), b.double())


@pytest.mark.parametrize("a_dtype", PARTNERS)
def test_every_8_bit_value_of_a_is_exact(a_dtype):
    a = every_value(a_dtype).view(256, 1).contiguous()
    b = torch.ones(1, 8).to(PARTNERS[a_dtype][0])
    with interpret():
        c = gemm_mixed(a, b, out_dtype=torch.float32)
    assert torch.equal(c.double(), a.double().expand(256, 8))


@pytest.mark.parametrize("transposes", list(itertools.product([False, True], repeat=2)))
def test_sums_of_integers_are_exact_where_float32_is_not(transposes):
    source = torch.Generator().manual_seed(3)
    a, b = (torch.randint(100, 128, shape, generator=source) for shape in ((65, 2048), (2048, 7)))
    stored = [x.T if turned else x for x, turned in zip((a, b), transposes, strict=True)]
    with interpret():
        c = gemm_mixed(
            *(x.to(torch.int8).contiguous() for x in stored),
            transpose_a=transposes[0],
            transpose_b=transposes[1],
        )
    assert c.dtype == torch.int32
    assert torch.equal(c.long(), a @ b)
    assert (c > 2**24).all()


def test_column_scales_apply_after_the_exact_sum():
    source = torch.Generator().manual_seed(4)
    a = torch.randn(8, 64, generator=source).half()
    b = torch.randint(-128, 128, (64, 72), generator=source).to(torch.int8)
    scale = torch.rand(72, generator=source) + 0.1
    with interpret():
        c = gemm_mixed(a, b, scale=scale, out_dtype=torch.float32)
    torch.testing.assert_close(
        c.double(), a.double() @ b.double() * scale.double(), rtol=1e-6, atol=1e-4
    )


def test_output_dtype_holds_the_result():
    def dtype(a_dtype, b_dtype, **options):
        with interpret():
            return gemm_mixed(torch.ones(4, 4).to(a_dtype), torch.ones(4, 4).to(b_dtype), **options)

    assert dtype(torch.bfloat16, torch.int8).dtype == torch.bfloat16
    assert dtype(torch.float8_e5m2, torch.float8_e4m3fn).dtype == torch.bfloat16
    assert dtype(torch.int8, torch.int8).dtype == torch.int32
    assert dtype(torch.int8, torch.int8, scale=torch.ones(4)).dtype == torch.float32


def test_factors_are_multiplied_in_a_dtype_that_holds_both_on_that_gpu():
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    assert products(e4m3, e4m3, 80) == "float16"
    assert products(e4m3, e4m3, 90) == e4m3
    assert products(e5m2, e4m3, 90) == "float16"
    assert products("bfloat16", e5m2, 90) == "bfloat16"
    assert products("int8", "int8", 80) == "int8"


A, B = torch.ones(4, 8, dtype=torch.float16), torch.ones(8, 6, dtype=torch.int8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": A.float()}, "a must be one of float16, .*int8, got torch.float32"),
        ({"b": B.half()}, "b must be one of int8, .* beside float16, got torch.float16"),
        ({"b": B.T}, "a and b must agree in k"),
        ({"scale": torch.ones(5)}, r"scale must have shape \(6,\), got \(5,\)"),
        ({"scale": torch.ones(6).half()}, "scale must be float32, got torch.float16"),
        ({"scale": torch.ones(6, device="meta")}, "scale must be on the device of a, cpu"),
        ({"scale": torch.ones(12)[::2]}, "scale must be contiguous, got stride 2"),
        ({"out_dtype": torch.int32}, "out_dtype must be one of float16, bfloat16, float32"),
        ({"a": A.to(torch.int8), "scale": torch.ones(6), "out_dtype": torch.int32}, "out_dtype"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        gemm_mixed(**({"a": A, "b": B} | arguments))
