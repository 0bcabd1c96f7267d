"""The GEMM operator is right for every orientation and off the tile, and checks its arguments."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.gemm.kernel import gemm_kernel

DTYPES = [torch.float16, torch.bfloat16]


def operand(rows, cols, dtype, *, transposed, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (cols, rows) if transposed else (rows, cols)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (64, 64, 32), (65, 129, 40), (63, 1, 100)])
def test_product_is_the_float64_product_rounded_once(m, n, k, transpose_a, transpose_b, dtype):
    a = operand(m, k, dtype, transposed=transpose_a, seed=1)
    b = operand(k, n, dtype, transposed=transpose_b, seed=2)
    with interpret():
        c = gemm(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    wide_a = (a.T if transpose_a else a).double()
    wide_b = (b.T if transpose_b else b).double()
    exact = wide_a @ wide_b
    allowed = exact.abs() * torch.finfo(dtype).eps / 2 + (wide_a.abs() @ wide_b.abs()) * 2.0**-20
    assert c.dtype == dtype
    assert ((c.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulate_adds_c_before_rounding_and_leaves_c_alone(dtype):
    a = operand(65, 40, dtype, transposed=False, seed=3)
    b = operand(40, 30, dtype, transposed=False, seed=4)
    c = torch.randn(65, 30, generator=torch.Generator().manual_seed(5))
    before = c.clone()
    with interpret():
        out = gemm(a, b, c, accumulate=True)
    assert out.dtype == torch.float32
    assert torch.equal(c, before)
    torch.testing.assert_close(
        out.double(), a.double() @ b.double() + c.double(), rtol=1e-5, atol=1e-5
    )


def test_out_dtype_float32_is_not_rounded_to_the_inputs():
    a = operand(16, 40, torch.float16, transposed=False, seed=6)
    b = operand(40, 16, torch.float16, transposed=False, seed=7)
    with interpret():
        out = gemm(a, b, out_dtype=torch.float32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_dimensions_give_empty_or_zero(m, n, k):
    a, b = torch.ones(m, k, dtype=torch.float16), torch.ones(k, n, dtype=torch.float16)
    with interpret():
        c = gemm(a, b)
    assert torch.equal(c, torch.zeros(m, n, dtype=torch.float16))


def test_noncontiguous_operands_are_accepted():
    a = operand(20, 30, torch.float16, transposed=True, seed=8).T
    b = operand(30, 20, torch.float16, transposed=False, seed=9)
    with interpret():
        assert torch.equal(gemm(a, b), gemm(a.contiguous(), b))


A, B = torch.ones(4, 8, dtype=torch.float16), torch.ones(8, 6, dtype=torch.float16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": A[0], "b": B}, r"a must have 2 dimensions, got shape \(8,\)"),
        ({"a": A.float(), "b": B}, "a must be one of float16, bfloat16, got torch.float32"),
        ({"a": A, "b": B.bfloat16()}, "b must have the dtype of a, torch.float16"),
        ({"a": A, "b": B.T}, r"a and b must agree in k: .* has k = 8, .* has k = 6"),
        ({"a": A, "b": B.to("meta")}, "b must be on the device of a, cpu, got meta"),
        ({"a": A, "b": B, "accumulate": True}, "c must be given with accumulate=True"),
        ({"a": A, "b": B, "c": A}, "c is only used with accumulate=True"),
        ({"a": A, "b": B, "c": A, "accumulate": True}, r"c must have shape \(4, 6\), got \(4, 8\)"),
        ({"a": A, "b": B, "out_dtype": torch.int8}, "out_dtype must be one of"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        gemm(**arguments)


ROWS = [((64, 40), (40, 72)), ((64, 41), (41, 72)), ((64, 40), (40, 71)), ((1, 33), (33, 72))]


@pytest.mark.parametrize("shapes", ROWS)
def test_rows_off_16_bytes_take_the_kernel_that_loads_any_row(shapes):
    """A kernel for whole rows refuses others, so a wrong choice is an error, not wrong values."""
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in shapes)
    with interpret():
        assert (gemm(a, b) == a.shape[1]).all()
        whole = gemm_kernel("float16", "float16", False, False, False, True)
        c = torch.empty(a.shape[0], b.shape[1], dtype=torch.float16)
        if shapes == ROWS[0]:
            whole(a, b, c)
            assert torch.equal(c, gemm(a, b))
        else:
            with pytest.raises(ValueError, match=r"shape"):
                whole(a, b, c)


def test_one_row_with_a_wider_stride():
    a = torch.ones(4, 40, dtype=torch.float16)[:1, :33]
    assert a.is_contiguous()
    assert a.stride(0) == 40
    with interpret():
        assert (gemm(a, torch.ones(33, 8, dtype=torch.float16)) == 33).all()
