"""Masks that follow from a few integers are made once for those, and used wherever they recur."""

import numpy as np
import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.runtime import masks
from tlmatrix_kernels.attention import varlen_attention


@jit_kernel(Length="i32[1]", X="i32[extent]", Y="i32[extent]", out_idx=[2], threads=32)
def masked(Length, X, Y, extent, test):
    length = Length[0]
    for i in T.Parallel(extent):
        Y[i] = T.if_then_else(test(X, i, length), i, -1)


@pytest.mark.parametrize(
    ("test", "kept"),
    [
        (lambda x, i, n: i + n < 40, True),
        (lambda x, i, n: (i < n) & (i > 3), True),
        (lambda x, i, n: (i & 3) < n, True),
        (lambda x, i, n: x[i] < n, False),
        (lambda x, i, n: (i < n) & (x[i] > 0), False),
    ],
)
def test_a_mask_of_integers_and_positions_alone_is_kept(test, kept):
    x, i = torch.arange(-20, 44, dtype=torch.int32), torch.arange(64, dtype=torch.int32)
    with interpret():
        kernel = masked(64, test)
        for length in (2, 30):
            n = torch.tensor([length], dtype=torch.int32)
            assert torch.equal(kernel(n, x), torch.where(test(x, i, n), i, -1))
        assert ("kept_at := " in kernel.source) == kept


def attention(cuts):
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(cuts[-1], 2, 64, generator=generator).half() for _ in range(4))
    leaves = [each.requires_grad_() for each in (q, k, v)]
    starts = torch.tensor(cuts, dtype=torch.int32)
    with interpret():
        out, lse = varlen_attention(*leaves, starts, starts, 100, 100, causal=True)
        gradients = torch.autograd.grad(out, leaves, do)
    return [out.detach(), lse.detach(), *gradients]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_attention_has_the_same_bits_with_kept_masks_and_without(monkeypatch):
    masks.KEPT.clear()
    batches = [[0, 5, 70, 70, 100], [0, 30, 95, 96, 100], [0, 5, 70, 70, 100]]
    kept = [attention(cuts) for cuts in batches]
    assert len(masks.KEPT) > 10
    monkeypatch.setattr(masks, "_LARGEST_KEPT", 0)
    masks.KEPT.clear()
    made = [attention(cuts) for cuts in batches]
    assert not masks.KEPT
    assert all(map(same, kept, made))
    assert same(kept[0], kept[2])


def test_a_launch_on_lengths_seen_before_makes_no_mask():
    cuts = [0, 5, 70, 70, 100]
    masks.KEPT.clear()
    attention(cuts)
    known = dict(masks.KEPT)
    attention(cuts)
    assert masks.KEPT.keys() == known.keys()
    assert all(masks.KEPT[place] is pair for place, pair in known.items())


def test_kept_masks_are_few_and_not_to_be_written(monkeypatch):
    masks.KEPT.clear()
    monkeypatch.setattr(masks, "_MOST_KEPT", 3)
    for length in range(7):
        mask, unmasked = masks.kept(("form", length), np.arange(8)[:, None] < length)
        assert (mask != unmasked).all()
        assert len(masks.KEPT) <= 3
        assert masks.run_of(mask, (8, 4)) == ((0, 0, length) if length else (0, 0, 0))
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True
    masks.KEPT.clear()
