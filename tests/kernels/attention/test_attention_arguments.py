"""What attention operators refuse that no invalid input of a spec can be."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import decode_attention, paged_attention, sm100_attention

HALF = torch.float16


def half(*shape):
    return torch.ones(shape, dtype=HALF)


def bounds(*places, dtype=torch.int32):
    return torch.tensor(places, dtype=dtype)


def test_a_cache_must_be_contiguous_for_it_is_never_copied():
    q, cache, length = half(1, 6, 32), half(1, 14, 2, 32), bounds(5)
    strided = cache.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="k_cache must be contiguous, got strides"):
        decode_attention(q, strided, cache, length)
    shifted = half(3 * 16 * 2 * 32 + 1)[1:].view(3, 16, 2, 32)
    with pytest.raises(ValueError, match="k_pages must begin at a multiple of 16 bytes"):
        paged_attention(q, shifted, shifted, bounds([0]), length)


def test_an_unknown_variant_is_refused_by_name():
    rows = half(1, 8, 1, 32)
    with pytest.raises(ValueError, match="variant must be one of ss, ts, wasp, got 'sw'"):
        sm100_attention(rows, rows, rows, variant="sw")


def test_gradients_of_wide_heads_are_refused_on_blackwell_and_their_forward_pass_is_not():
    rows = half(1, 20, 1, 160)
    with pytest.raises(ValueError, match=r"head_dim must be at most 128 .* gradients, got 160"):
        sm100_attention(rows.clone().requires_grad_(), rows, rows)
    with interpret(arch="sm_100a"), torch.no_grad():
        assert torch.equal(sm100_attention(rows, rows, rows)[0], rows)
