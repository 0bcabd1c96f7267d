"""`T.c2d_im2col` against torch."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")


@tilelang.jit(out_idx=[-1])
def im2col_kernel(n, h, w, c, kernel, stride, dilation, pad, pixels, channels, dtype):
    h_out = (h + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    w_out = (w + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    rows = T.ceildiv(n * h_out * w_out, pixels)
    columns = kernel * kernel * c // channels

    @T.prim_func
    def main(
        X: T.Tensor((n, h, w, c), dtype), Out: T.Tensor((rows * pixels, columns * channels), dtype)
    ):
        with T.Kernel(rows, columns, threads=128) as (bx, by):
            tile = T.alloc_shared((pixels, channels), dtype)
            T.im2col(X, tile, bx, by, kernel, stride, dilation, pad)
            T.copy(tile, Out[bx * pixels, by * channels])

    return main


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 2), (1, 1, 1)])
def test_im2col_lays_out_what_each_tap_of_a_filter_sees(kernel, stride, dilation, dtype):
    n, h, w, c, pixels, channels = 2, 7, 5, 8, 16, 4
    pad = (kernel - 1) * dilation // 2
    x = torch.randn(n, h, w, c).to(getattr(torch, dtype))
    got = im2col_kernel(n, h, w, c, kernel, stride, dilation, pad, pixels, channels, dtype)(x)
    unfolded = torch.nn.functional.unfold(
        x.float().permute(0, 3, 1, 2), kernel, dilation=dilation, padding=pad, stride=stride
    )
    taps = unfolded.reshape(n, c, kernel * kernel, -1).permute(0, 3, 2, 1)
    expected = taps.reshape(-1, kernel * kernel * c).to(x.dtype)
    assert torch.equal(got[: len(expected)], expected)
    assert not got[len(expected) :].any()


def test_im2col_that_shrinks_the_image_is_refused():
    with pytest.raises(Unsupported, match=r"T\.im2col with a padding that changes the size"):
        im2col_kernel(1, 8, 8, 8, 3, 1, 1, 0, 16, 8, "float16")
