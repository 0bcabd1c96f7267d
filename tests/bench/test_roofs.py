"""Peaks by a GPU's name and the dtype of the operands; no guess for a GPU that is not known."""

import pytest

from tlmatrix.bench.roofs import roof_of


@pytest.mark.parametrize(
    ("gpu", "dtype", "tera", "bandwidth"),
    [
        ("NVIDIA H200", "float16", 989.4, 4.8e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4, 3.35e12),
        ("NVIDIA H200", "float8_e4m3", 1978.8, 4.8e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 156.0, 2.039e12),
        ("NVIDIA B200", "float16", 2250.0, 8e12),
    ],
)
def test_peaks_are_dense_tensor_core_rates(gpu, dtype, tera, bandwidth):
    roof = roof_of(gpu)
    assert roof.peak(dtype) == pytest.approx(tera * 1e12)
    assert roof.bandwidth == pytest.approx(bandwidth)


def test_unknown_gpu_has_no_peak():
    assert roof_of("NVIDIA H300") is None
    assert roof_of("NVIDIA A100-SXM4-80GB").peak("float8_e4m3") is None
    assert roof_of("NVIDIA H200").peak("float64") is None
