"""GEMM variants for one architecture are right under every schedule, and refuse what TMA cannot."""

import pytest
import torch

from tlmatrix.interpreter import SCHEDULES, interpret, scheduled
from tlmatrix_kernels.gemm import gemm


def operands(m, n, k, transpose_a=False, transpose_b=False):
    generator = torch.Generator().manual_seed(m + n + k)
    a = torch.randn((k, m) if transpose_a else (m, k), generator=generator).half()
    b = torch.randn((n, k) if transpose_b else (k, n), generator=generator).half()
    return a, b


@pytest.mark.parametrize("variant", ["tcgen05", "tcgen05_ws", "wgmma_ws"])
@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("m", "n", "k"), [(136, 264, 328), (8, 8, 8), (384, 136, 64)])
def test_right_under_every_schedule_and_nothing_races(variant, transposes, m, n, k):
    a, b = operands(m, n, k, *transposes)
    exact = (a.T if transposes[0] else a).double() @ (b.T if transposes[1] else b).double()
    c = torch.randn(m, n)
    options = {"transpose_a": transposes[0], "transpose_b": transposes[1], "variant": variant}
    with interpret(arch="sm_90a" if variant == "wgmma_ws" else "sm_100a"):
        for seed, schedule in enumerate(SCHEDULES):
            with scheduled(schedule, seed=seed):
                got = gemm(a, b, out_dtype=torch.float32, **options)
                added = gemm(a, b, c, accumulate=True, **options)
            torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)
            torch.testing.assert_close(added.double(), exact + c, rtol=1e-5, atol=1e-4)


def test_rows_that_tma_cannot_read_go_through_the_plain_variant_only():
    a, b = operands(65, 33, 17)
    with interpret(arch="sm_100a"):
        got = gemm(a, b, out_dtype=torch.float32, variant="tcgen05")
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
    with pytest.raises(
        ValueError,
        match=r"a must have rows of a multiple of 8 elements \(16 bytes\) for variant "
        "'tcgen05_ws', got 17: use variant 'tiled'",
    ):
        gemm(a, b, variant="tcgen05_ws")


def test_an_operand_that_starts_off_16_bytes_is_copied_first():
    a, b = operands(16, 16, 16)
    shifted = torch.cat([a.new_zeros(1), a.flatten()])[1:].view(16, 16)
    assert shifted.data_ptr() % 16
    with interpret(arch="sm_100a"):
        assert torch.equal(gemm(shifted, b, variant="tcgen05_ws"), gemm(a, b, variant="tcgen05_ws"))


def test_an_unknown_variant_is_refused_by_name():
    a, b = operands(8, 8, 8)
    with pytest.raises(ValueError, match=r"variant must be one of .*wgmma_ws, got 'tcgen06'"):
        gemm(a, b, variant="tcgen06")


def test_tiles_are_refused_where_a_variant_has_its_own():
    a, b = operands(8, 8, 8)
    with pytest.raises(ValueError, match="tiles must be None for variant 'tcgen05', got 'wide'"):
        gemm(a, b, variant="tcgen05", tiles="wide")
