"""Packed attention is the definition for every batch of lengths, and keeps sequences apart."""

import attention_reference as reference
import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import varlen_attention

SAME = None
# lengths_q, lengths_k, kv_heads, groups, head_dim, head_dim_v, causal, window
CASES = [
    pytest.param([17, 64, 1], SAME, 1, 1, 32, 32, False, None, id="short"),
    pytest.param([127, 128, 129], SAME, 1, 1, 32, 32, True, None, id="around-a-tile"),
    pytest.param([100, 60, 200], SAME, 2, 4, 32, 32, True, None, id="eight-heads"),
    pytest.param([0, 5, 0, 0, 63], [7, 0, 0, 3, 64], 1, 3, 40, 48, False, None, id="empty-ones"),
    pytest.param([10, 3], [300, 1], 1, 2, 32, 64, True, None, id="keys-outlast-queries"),
    pytest.param([200, 65], [30, 66], 1, 2, 64, 32, True, None, id="queries-outlast-keys"),
    pytest.param([200, 130], [260, 20], 1, 1, 32, 32, True, 63, id="window"),
    pytest.param([70], [90], 1, 2, 256, 32, True, 20, id="wide-head"),
]


def batch(lengths_q, lengths_k, kv_heads, groups, dim, dim_v, dtype=torch.float16):
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    inputs = reference.leaves(
        (total_q, kv_heads * groups, dim),
        (total_k, kv_heads, dim),
        (total_k, kv_heads, dim_v),
        dtype=dtype,
    )
    return inputs, reference.cumulative(lengths_q), reference.cumulative(lengths_k)


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
@pytest.mark.parametrize(
    ("lengths_q", "lengths_k", "kv_heads", "groups", "dim", "dim_v", "causal", "window"), CASES
)
def test_matches_the_definition(
    lengths_q, lengths_k, kv_heads, groups, dim, dim_v, causal, window, backward
):
    lengths_k = lengths_q if lengths_k is SAME else lengths_k
    inputs, cu_q, cu_k = batch(lengths_q, lengths_k, kv_heads, groups, dim, dim_v)
    options = {"causal": causal, "window": window}
    with interpret():
        result = varlen_attention(*inputs, cu_q, cu_k, **options, backward=backward)
        wide = [tensor.double() for tensor in inputs]
        want = reference.packed(*wide, lengths_q, lengths_k, **options)
        reference.compare(result, want, inputs, torch.float16)


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_max_seqlen_may_be_given_and_too_large(backward):
    inputs, cu_q, cu_k = batch([5, 70], [9, 80], 1, 1, 32, 32)
    with interpret():
        result = varlen_attention(*inputs, cu_q, cu_k, 1000, 500, causal=True, backward=backward)
        want = reference.packed(*(t.double() for t in inputs), [5, 70], [9, 80], causal=True)
        reference.compare(result, want, inputs, torch.float16)


@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"), [([], []), ([0, 0], [0, 0]), ([0], [4]), ([3, 2], [0, 0])]
)
def test_no_keys_and_no_queries(lengths_q, lengths_k, backward):
    inputs, cu_q, cu_k = batch(lengths_q, lengths_k, 1, 2, 32, 40)
    with interpret():
        out, lse = varlen_attention(*inputs, cu_q, cu_k, backward=backward)
        gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert out.shape == (sum(lengths_q), 2, 40)
    assert lse.shape == (2, sum(lengths_q))
    assert (out == 0).all()
    assert (lse == float("-inf")).all()
    for gradient, tensor in zip(gradients, inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_huge_neighbours_change_no_bit(backward, dtype, causal):
    lengths_q, lengths_k = [30, 70, 20], [40, 60, 10]
    (q, k, v), cu_q, cu_k = batch(lengths_q, lengths_k, 1, 2, 32, 32, dtype)
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(3)).to(dtype)

    def middle(q, k, v, do):
        inputs = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out, lse = varlen_attention(*inputs, cu_q, cu_k, causal=causal, backward=backward)
        dq, dk, dv = torch.autograd.grad(out, inputs, do)
        return [out[30:100], lse[:, 30:100], dq[30:100], dk[40:100], dv[40:100]]

    huge = torch.finfo(dtype).max
    poisoned = [t.detach().clone() for t in (q, k, v, do)]
    for tensor, (start, end) in zip(
        poisoned, [(30, 100), (40, 100), (40, 100), (30, 100)], strict=True
    ):
        tensor[:start] = huge
        tensor[end:] = -huge
    with interpret():
        alone, beside = middle(q, k, v, do), middle(*poisoned)
    for quiet, loud in zip(alone, beside, strict=True):
        assert torch.equal(quiet, loud)


def test_scale_and_window_are_taken_anew_at_each_call():
    inputs, cu_q, cu_k = batch([20, 33], [40, 20], 1, 1, 32, 32)
    with interpret():
        for scale, window in [(None, 5), (0.5, 5), (0.5, 9), (None, 5)]:
            options = {"causal": True, "scale": scale, "window": window}
            result = varlen_attention(*inputs, cu_q, cu_k, **options)
            want = reference.packed(*(t.double() for t in inputs), [20, 33], [40, 20], **options)
            reference.compare(result, want, inputs, torch.float16)
