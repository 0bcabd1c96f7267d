"""Split-K: slices of K add up, however many there are, and their number follows the shape."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.gemm import gemm_split_k
from tlmatrix_kernels.gemm.split_operator import MAX_SPLITS, MIN_STEPS, choose_splits


def operands(m, n, k):
    source = torch.Generator().manual_seed(m + n + k)
    return (torch.randn(shape, generator=source).half() for shape in ((m, k), (k, n)))


@pytest.mark.parametrize("reduction", ["workspace", "atomic"])
@pytest.mark.parametrize("splits", [None, 1, 2, 3, 5, 40])
@pytest.mark.parametrize(("m", "n", "k"), [(65, 136, 320), (5, 7, 33), (16, 128, 264)])
def test_split_k_sums_even_and_uneven_splits(m, n, k, splits, reduction):
    a, b = operands(m, n, k)
    with interpret():
        c = gemm_split_k(a, b, out_dtype=torch.float32, splits=splits, reduction=reduction)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("reduction", ["workspace", "atomic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_addend_is_added_once_and_left_unchanged(dtype, reduction):
    a, b = operands(20, 24, 200)
    c = torch.full((20, 24), 100.0, dtype=dtype)
    with interpret():
        out = gemm_split_k(a, b, c, accumulate=True, splits=3, reduction=reduction)
    assert (c == 100).all()
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), a.double() @ b.double() + 100, rtol=1e-3, atol=1e-3)


def test_one_wave_has_enough_k_steps_per_block():
    assert choose_splits(64, 128, 64 * 1000, 132) == MAX_SPLITS, "one tile, a long K"
    assert choose_splits(512, 1024, 65536, 132) == 132 // 16, "what a wave holds"
    assert choose_splits(4096, 4096, 65536, 132) == 1, "tiles enough for every multiprocessor"
    assert choose_splits(16, 4096, 14336, 132) == 2, "a decoded batch: 64 tiles"
    assert choose_splits(1, 1, 128 * 3 * MIN_STEPS, 132) == 3, "no slice of too few steps"
    assert choose_splits(1, 1, 0, 132) == 1
    assert choose_splits(64, 4096, 8192, 148) > choose_splits(64, 4096, 8192, 64)
