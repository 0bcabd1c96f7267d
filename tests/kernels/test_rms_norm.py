"""RMS norm, forward and backward, against autograd in float64, for every dtype and off the tile."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.norm import rms_norm
from tlmatrix_kernels.norm.reference import rms_norm as reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def inputs(rows, cols, dtype):
    generator = torch.Generator().manual_seed(rows * 1000 + cols)
    x = torch.randn(rows, cols, generator=generator).to(dtype).requires_grad_()
    w = torch.randn(cols, generator=generator).to(dtype).requires_grad_()
    dy = torch.randn(rows, cols, generator=generator).to(dtype)
    return x, w, dy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (8, 256), (9, 257), (7, 1000), (3, 40)])
def test_values_and_gradients_match_autograd_in_float64(rows, cols, dtype):
    x, w, dy = inputs(rows, cols, dtype)
    with interpret():
        y = rms_norm(x, w)
        got = (y, *torch.autograd.grad(y, (x, w), dy))
    wide_x, wide_w = (t.detach().double().requires_grad_() for t in (x, w))
    wide_y = reference(wide_x, wide_w)
    expected = (wide_y, *torch.autograd.grad(wide_y, (wide_x, wide_w), dy.double()))
    eps = max(torch.finfo(dtype).eps, 1e-6)
    for name, ours, exact in zip(("y", "dx", "dw"), got, expected, strict=True):
        assert ours.dtype == dtype
        error = (ours.double() - exact).abs().max()
        assert error <= eps * 2 * max(exact.abs().max(), 1), name


def test_no_rows_give_no_output_and_zero_weight_gradient():
    x, w, dy = inputs(0, 16, torch.float16)
    with interpret():
        y = rms_norm(x, w)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
    assert y.shape == dx.shape == (0, 16)
    assert torch.equal(dw, torch.zeros(16, dtype=torch.float16))


def test_eps_is_an_argument_of_every_call():
    x, w, _ = inputs(2, 16, torch.float32)
    x = x.detach() * 1e-3
    with interpret():
        for eps in (1e-6, 1.0, 1e-6):
            torch.testing.assert_close(
                rms_norm(x, w, eps), reference(x, w, eps), rtol=1e-5, atol=1e-6
            )


X, W = torch.ones(2, 8, dtype=torch.float16), torch.ones(8, dtype=torch.float16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], W), r"x must have 2 dimensions, \[rows, cols\], got shape \(8,\)"),
        ((X[:, :0], W[:0]), "x must have at least one column"),
        ((X.int(), W), "x must be float16, bfloat16 or float32, got torch.int32"),
        ((X, W[:4]), r"w must have shape \(8,\), a weight a column, got \(4,\)"),
        ((X, W.float()), "w must have the dtype of x, torch.float16"),
        ((X, W.to("meta")), "w must be on the device of x, cpu, got meta"),
        ((X, W, 0.0), "eps must be positive, got 0.0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(*arguments)
