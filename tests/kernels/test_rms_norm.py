"""What RMS norm refuses, in which words."""

import pytest
import torch

from tlmatrix_kernels.norm import rms_norm

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
def test_rms_norm_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(*arguments)
