"""What the attention operators refuse, in which words."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import (
    decode_attention,
    dense_attention,
    paged_attention,
    sm100_attention,
    varlen_attention,
)
from tlmatrix_kernels.attention.validate import STRATEGIES

HALF = torch.float16


def half(*shape):
    return torch.ones(shape, dtype=HALF)


def bounds(*places, dtype=torch.int32):
    return torch.tensor(places, dtype=dtype)


def dense_arguments(**changes):
    return {"q": half(2, 6, 4, 32), "k": half(2, 8, 2, 32), "v": half(2, 8, 2, 40)} | changes


def packed_arguments(**changes):
    lengths = {"cu_seqlens_q": bounds(0, 2, 6), "cu_seqlens_k": bounds(0, 5, 8)}
    rows = {"q": half(6, 4, 32), "k": half(8, 2, 32), "v": half(8, 2, 40)}
    return rows | lengths | changes


def test_the_plain_arguments_of_these_tests_are_accepted():
    with interpret():
        out, _ = dense_attention(**dense_arguments())
        packed_out, _ = varlen_attention(**packed_arguments())
    assert out.shape == (2, 6, 4, 40)
    assert packed_out.shape == (6, 4, 40)


SHARED = [
    ({"window": 4}, "window needs causal=True, got window=4 with causal=False"),
    ({"window": 0, "causal": True}, "window must be at least 1 and below 2**31, got 0"),
    ({"window": 2.5, "causal": True}, "window must be an int or None, got 2.5"),
    ({"causal": "yes"}, "causal must be True or False, got 'yes'"),
    ({"scale": 0.0}, "scale must be positive and finite, from 1e-20 to 1e+20, got 0.0"),
    ({"scale": float("nan")}, "scale must be positive and finite, from 1e-20 to 1e+20, got nan"),
    ({"scale": "1"}, "scale must be a number or None, got '1'"),
    (
        {"backward": "fast"},
        f"backward must be one of {', '.join(STRATEGIES)} or None, got 'fast'",
    ),
    ({"sink": [1.0, 1.0, 1.0, 1.0]}, "sink must be a torch.Tensor or None, got list"),
    ({"sink": torch.zeros(3)}, "sink must have the shape [heads], [4], got [3]"),
    ({"sink": torch.zeros(1, 4)}, "sink must have the shape [heads], [4], got [1, 4]"),
    (
        {"sink": torch.zeros(4, dtype=torch.bfloat16)},
        "sink must be float32 or have the dtype of q, torch.float16, got torch.bfloat16",
    ),
    ({"sink": torch.zeros(4, device="meta")}, "sink must be on the device of q, cpu, got meta"),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *SHARED,
        ({"q": [1.0]}, "q must be a torch.Tensor, got list"),
        (
            {"k": half(8, 2, 32)},
            "k must have 4 dimensions [batch, seqlen, heads, dim], got shape [8, 2, 32]",
        ),
        ({"q": torch.ones(2, 6, 4, 32)}, "q must be float16 or bfloat16, got torch.float32"),
        (
            {"v": half(2, 8, 2, 40).bfloat16()},
            "v must have the dtype of q, torch.float16, got torch.bfloat16",
        ),
        ({"k": half(2, 8, 2, 32).to("meta")}, "k must be on the device of q, cpu, got meta"),
        ({"k": half(3, 8, 2, 32)}, "k must have the batch of q, 2, got 3"),
        ({"v": half(2, 9, 2, 40)}, "v must have the length of k, 8, got 9"),
        ({"v": half(2, 8, 1, 40)}, "v must have as many heads as k, 2, got 1"),
        (
            {"q": half(2, 6, 3, 32)},
            (
                "the heads of q must be a multiple of the heads of k and v, "
                "got 3 query heads and 2 kv heads"
            ),
        ),
        ({"q": half(2, 6, 0, 32)}, "q must have at least 1 head, got 0"),
        ({"k": half(2, 8, 2, 48)}, "k must have the head_dim of q, 32, got 48"),
        (
            {"q": half(2, 6, 4, 264), "k": half(2, 8, 2, 264)},
            "head_dim must be a multiple of 8 from 8 to 256, got 264",
        ),
        ({"v": half(2, 8, 2, 36)}, "head_dim_v must be a multiple of 8 from 8 to 256, got 36"),
        ({"layout": "sbhd"}, "layout must be one of bshd, bhsd, got 'sbhd'"),
    ],
)
def test_dense_attention_refuses(changes, words):
    with pytest.raises(ValueError, match=r"must|needs") as refusal:
        dense_attention(**dense_arguments(**changes))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *SHARED,
        (
            {"q": half(1, 6, 4, 32)},
            "q must have 3 dimensions [total, heads, dim], got shape [1, 6, 4, 32]",
        ),
        ({"v": half(7, 2, 40)}, "v must have the rows of k, 8, got 7"),
        ({"cu_seqlens_q": [0, 2, 6]}, "cu_seqlens_q must be a torch.Tensor, got list"),
        (
            {"cu_seqlens_q": bounds(0, 2, 6, dtype=torch.int64)},
            "cu_seqlens_q must be int32, got torch.int64",
        ),
        (
            {"cu_seqlens_k": bounds([0, 8])},
            "cu_seqlens_k must have the shape [batch + 1], got [1, 2]",
        ),
        ({"cu_seqlens_k": bounds()}, "cu_seqlens_k must have the shape [batch + 1], got [0]"),
        (
            {"cu_seqlens_k": bounds(0, 8)},
            "cu_seqlens_k must have the length of cu_seqlens_q, 3 (batch + 1), got 2",
        ),
        ({"cu_seqlens_q": bounds(1, 2, 6)}, "cu_seqlens_q must begin with 0, got 1"),
        (
            {"cu_seqlens_q": bounds(0, 7, 6)},
            "cu_seqlens_q must not decrease, got 7 then 6 at index 2",
        ),
        (
            {"cu_seqlens_k": bounds(0, 5, 9)},
            "cu_seqlens_k must end with the rows of k and v, 8, got 9",
        ),
        ({"cu_seqlens_q": bounds(0, 2, 5)}, "cu_seqlens_q must end with the rows of q, 6, got 5"),
        ({"max_seqlen_q": 3}, "max_seqlen_q must be at least the longest sequence, 4, got 3"),
        ({"max_seqlen_k": 4.0}, "max_seqlen_k must be an int or None, got 4.0"),
    ],
)
def test_varlen_attention_refuses(changes, words):
    with pytest.raises(ValueError, match=r"must|needs") as refusal:
        varlen_attention(**packed_arguments(**changes))
    assert str(refusal.value) == words


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
