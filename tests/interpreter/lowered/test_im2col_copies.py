"""TMA copies of pixels (im2col): a convolution as a product, and what each tap of a filter sees."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(X="f16[n, h, w, c]", Out="f16[rows * 64, taps * c]")
def taps_of(X, Out, n, h, w, c, rows, taps, stride, pad):
    with T.Kernel(rows, taps * c // 32, threads=128) as (row, step):
        tile = T.alloc_shared((64, 32), "float16")
        T.c2d_im2col(X, tile, row, step, int(taps**0.5), stride, 1, pad)
        T.copy(tile, Out[row * 64, step * 32])


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1)])
def test_im2col_copies_what_each_tap_sees(kernel, stride):
    n, h, w, c = 2, 9, 7, 64
    pad = kernel // 2
    x = torch.randn(n, h, w, c).half()
    unfolded = torch.nn.functional.unfold(
        x.float().permute(0, 3, 1, 2), kernel, padding=pad, stride=stride
    )
    expected = unfolded.reshape(n, c, kernel**2, -1).permute(0, 3, 2, 1)
    expected = expected.reshape(-1, kernel**2 * c).half()
    rows = -(-len(expected) // 64)
    out = torch.full((rows * 64, kernel**2 * c), float("nan")).half()
    with interpret(arch="sm_90a", lowered=True, sanitize=True) as run:
        taps_of(n, h, w, c, rows, kernel**2, stride, pad)(x, out)
    assert run.reports == []
    assert torch.equal(out[: len(expected)], expected)
    assert not out[len(expected) :].any()
