"""Masks that follow from a few integers are made once for those, and used wherever they recur."""

import numpy as np
import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.emit.masks import form_of_mask
from tlmatrix.interpreter.runtime import masks
from tlmatrix_kernels.attention import varlen_attention

IOTAS = {"i0": ("64", 0, 2), "i1_rows": ("rows", 1, 2)}


@pytest.mark.parametrize(
    ("code", "form"),
    [
        ("((query + i0) < length)", ("a0 + i0of2_64 < a1", ["query", "length"])),
        ("(query + i0 < query)", ("a0 + i0of2_64 < a0", ["query"])),
        (
            "(i1_rows < 3) & ~(i0 > length)",
            ("(i1of2_a0 < 3) & ~(i0of2_64 > a1)", ["rows", "length"]),
        ),
        ("(wrap(i0 * length, 32, True) < 5)", ("wrap(i0of2_64 * a0, 32, True) < 5", ["length"])),
        (
            "(i0 < (s if s is not None else (s := seen.one(3, (b,), item(cuts, b, 0)))))",
            (
                "i0of2_64 < a0",
                ["(s if s is not None else (s := seen.one(3, (b,), item(cuts, b, 0))))"],
            ),
        ),
        (
            "(i0 < (fit if -8 <= (fit := (query + length)) <= 7 else watch.left(0, fit, 4)))",
            (
                "i0of2_64 < a0",
                ["(fit if -8 <= (fit := (query + length)) <= 7 else watch.left(0, fit, 4))"],
            ),
        ),
        (
            "(i0 < (query if query_seen.full else query_seen.one(1, (), query)))",
            ("i0of2_64 < a0", ["(query if query_seen.full else query_seen.one(1, (), query))"]),
        ),
    ],
)
def test_a_mask_of_integers_and_positions_has_a_form(code, form):
    assert form_of_mask(code, {"query", "length"}, {"s"}, IOTAS) == form


@pytest.mark.parametrize(
    "code",
    [
        "(tile[:, None] == i0)",
        "(tile == i0)",
        "(gather(cuts, i0) < length)",
        "(i0 < item(cuts, query, 0))",
        "(i0 < (query if length else 3))",
        "(i0 < (fit if -8 <= (fit := cuts[0]) <= 7 else watch.left(0, fit, 4)))",
        "(length > 3 and i0 < query)",
        "np.logical_not(mask)",
        "(mask & (i0 < length))",
    ],
)
def test_a_mask_that_looks_at_memory_or_evaluates_in_part_has_none(code):
    assert form_of_mask(code, {"query", "length"}, {"s"}, IOTAS) is None


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
