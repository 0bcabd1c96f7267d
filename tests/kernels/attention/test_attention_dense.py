"""Dense attention is the float64 definition, rounded, forward and backward."""

import attention_reference as reference
import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import dense_attention

# seqlen_q, seqlen_k, kv_heads, groups, head_dim, head_dim_v, causal, window
CASES = [
    pytest.param(1, 1, 1, 1, 32, 32, True, None, id="one-row"),
    pytest.param(128, 128, 2, 1, 64, 64, False, None, id="exactly-one-tile"),
    pytest.param(129, 65, 1, 3, 40, 96, False, None, id="past-a-tile-odd-dims"),
    pytest.param(130, 130, 1, 4, 64, 64, True, None, id="causal-past-a-tile"),
    pytest.param(40, 200, 2, 2, 48, 32, True, None, id="causal-more-keys"),
    pytest.param(200, 60, 1, 2, 32, 80, True, None, id="causal-rows-without-keys"),
    pytest.param(200, 200, 1, 3, 64, 32, True, 1, id="window-1"),
    pytest.param(270, 270, 1, 1, 32, 32, True, 64, id="window-skips-first-tiles"),
    pytest.param(70, 300, 1, 1, 32, 32, True, 129, id="window-more-keys"),
    pytest.param(300, 70, 1, 1, 32, 32, True, 65, id="window-fewer-keys"),
    pytest.param(90, 90, 1, 1, 32, 32, True, 2**31 - 1, id="window-past-everything"),
    pytest.param(70, 90, 1, 2, 160, 192, True, None, id="wide-heads"),
]


def shapes(layout, batch, seqlen_q, seqlen_k, kv_heads, groups, dim, dim_v):
    sizes = [
        (seqlen_q, kv_heads * groups, dim),
        (seqlen_k, kv_heads, dim),
        (seqlen_k, kv_heads, dim_v),
    ]
    if layout == "bhsd":
        sizes = [(heads, rows, width) for rows, heads, width in sizes]
    return [(batch, *size) for size in sizes]


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "kv_heads", "groups", "dim", "dim_v", "causal", "window"), CASES
)
def test_matches_the_definition(
    seqlen_q, seqlen_k, kv_heads, groups, dim, dim_v, causal, window, backward
):
    inputs = reference.leaves(*shapes("bshd", 2, seqlen_q, seqlen_k, kv_heads, groups, dim, dim_v))
    with interpret():
        result = dense_attention(*inputs, causal=causal, window=window, backward=backward)
        wide = [tensor.double() for tensor in inputs]
        want = reference.dense(*wide, causal=causal, window=window)
        reference.compare(result, want, inputs, torch.float16)


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_layout_bhsd_and_bfloat16(backward):
    inputs = reference.leaves(*shapes("bhsd", 2, 70, 140, 2, 3, 64, 32), dtype=torch.bfloat16)
    with interpret():
        result = dense_attention(*inputs, causal=True, layout="bhsd", backward=backward)
        want = reference.dense(*(t.double() for t in inputs), causal=True, layout="bhsd")
        reference.compare(result, want, inputs, torch.bfloat16)


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_rows_without_keys_are_zero_with_lse_minus_infinity(backward):
    q, k, v = reference.leaves((1, 150, 2, 32), (1, 10, 1, 32), (1, 10, 1, 32))
    with interpret():
        out, lse = dense_attention(q, k, v, causal=True, backward=backward)
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert (out[:, :140] == 0).all()
    assert (lse[:, :, :140] == float("-inf")).all()
    assert (dq[:, :140] == 0).all()
    assert lse[:, :, 140:].isfinite().all()
    assert dk.isfinite().all()
    assert dv.isfinite().all()


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
@pytest.mark.parametrize(
    ("batch", "seqlen_q", "seqlen_k"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0)]
)
def test_empty_dimensions(batch, seqlen_q, seqlen_k, backward):
    inputs = reference.leaves(*shapes("bshd", batch, seqlen_q, seqlen_k, 1, 2, 32, 40))
    with interpret():
        out, lse = dense_attention(*inputs, causal=True, backward=backward)
        gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert out.shape == (batch, seqlen_q, 2, 40)
    assert lse.shape == (batch, 2, seqlen_q)
    assert (out == 0).all()
    assert (lse == float("-inf")).all()
    for gradient, tensor in zip(gradients, inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


def test_scale_is_taken_anew_at_each_call():
    inputs = reference.leaves((1, 20, 1, 32), (1, 30, 1, 32), (1, 30, 1, 32))
    with interpret():
        for scale in (None, 0.5, 0.01, None):
            result = dense_attention(*inputs, scale=scale)
            want = reference.dense(*(t.double() for t in inputs), scale=scale)
            reference.compare(result, want, inputs, torch.float16)
