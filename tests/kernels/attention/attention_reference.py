"""Attention in float64, a sequence at a time, written as its definition."""

import torch

# What float32 leaves of terms that should cancel exactly, as those of dq do where one key is seen.
FLOOR = 1e-4


def visible(seqlen_q, seqlen_k, causal, window):
    """[seqlen_q, seqlen_k] bool: which query sees which key."""
    place = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k)[None, :]
    seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if causal:
        seen &= key <= place
    if window is not None:
        seen &= key > place - window
    return seen


def one_sequence(q, k, v, *, causal=False, window=None, scale=None, sink=None):
    """q [seqlen_q, heads, dim], k and v [seqlen_k, kv_heads, dim]: out and lse [heads, seqlen_q].

    A row that sees no key has out 0, lse -inf and gradients 0. A finite sink [heads] is one more
    key, which every row sees, with that score and the value 0.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    seen = visible(q.shape[0], k.shape[0], causal, window)
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    if sink is not None:
        column = sink[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat([scores.masked_fill(~seen, float("-inf")), column], -1)
        v = torch.cat([v, v.new_zeros(1, *v.shape[1:])])
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v), scores.logsumexp(-1)
    blind = ~seen.any(-1)
    # A blind row gets one harmless score instead of none, and its result is taken away again.
    scores = scores.masked_fill(~(seen | blind[:, None]), float("-inf"))
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[-1]), q.new_full(q.shape[1::-1], float("-inf"))
    lse = scores.logsumexp(-1).masked_fill(blind, float("-inf"))
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
    return out.masked_fill(blind[:, None, None], 0.0), lse


def packed(q, k, v, lengths_q, lengths_k, **options):
    """Sequences of the given lengths, one after the other: out [total, ...], lse [heads, total]."""
    parts = [
        one_sequence(*rows, **options)
        for rows in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], 1)


def dense(q, k, v, *, layout="bshd", **options):
    """A batch in one of the dense layouts: out in that layout, lse [batch, heads, seqlen]."""
    if layout == "bhsd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    parts = [one_sequence(*rows, **options) for rows in zip(q, k, v, strict=True)]
    out, lse = (torch.stack(column) for column in zip(*parts, strict=True))
    return (out.transpose(1, 2) if layout == "bhsd" else out), lse


def cumulative(lengths):
    """cu_seqlens of the lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def leaves(*shapes, dtype=torch.float16, seed=0):
    """Seeded normal tensors that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def assert_near(got, want, what, dtype):
    """Within a few roundings of the largest element of each [.., dim] head."""
    assert got.shape == want.shape, what
    assert torch.isfinite(got).all(), what
    if want.numel() == 0:
        return
    want = want.double()
    allowed = 6 * torch.finfo(dtype).eps * want.abs().amax() + FLOOR
    worst = (got.double() - want).abs().max()
    assert worst <= allowed, f"{what}: off by {worst:.3g}, allowed {allowed:.3g}"
    # Each row by its own size too, so that a wrong small row cannot hide behind a large one.
    rows = (got.double() - want).norm(dim=-1)
    limit = 0.05 * want.norm(dim=-1) + 2 * torch.finfo(dtype).eps * want.abs().amax() + FLOOR
    assert (rows <= limit).all(), f"{what}: a row is wrong"


def compare(result, reference, inputs, dtype, seed=1):
    """Hold out, lse and the gradients of an operator against those of the reference.

    `inputs` are q, k and v, and the sink where there is one.
    """
    (out, lse), (want_out, want_lse) = result, reference
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert_near(out, want_out, "out", dtype)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=2e-5)
    generator = torch.Generator().manual_seed(seed)
    do = torch.randn(out.shape, generator=generator).to(dtype)
    got = torch.autograd.grad(out, inputs, do)
    want = torch.autograd.grad(want_out, inputs, do.double())
    for name, tensor, gradient, expected in zip(
        ("dq", "dk", "dv", "dsink")[: len(inputs)], inputs, got, want, strict=True
    ):
        assert gradient.dtype == tensor.dtype
        assert_near(gradient, expected, name, dtype)
