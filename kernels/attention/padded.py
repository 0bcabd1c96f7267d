"""Attention of padded tensors with masks: packed attention between an unpad and a pad.

What stands where no token is (it may be NaN) is never read by a kernel, and no query spends time
on it. The tokens' rows, heads * dim elements each, are gathered and scattered by PyTorch's
`index_select` and `index_copy_`: they move whole rows at the speed of memory, which a kernel of
one's own could not better. Each is the other's gradient, exactly, for no row is taken twice.
"""

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.attention.operators import varlen_attention
from tlmatrix_kernels.attention.validate import check_padded

__all__ = ["padded_attention"]


def padded_attention(
    q,
    k,
    v,
    mask_q=None,
    mask_k=None,
    *,
    max_seqlen_q=None,
    max_seqlen_k=None,
    causal=False,
    window=None,
    scale=None,
    backward=None,
):
    """Softmax attention of sequences in padded tensors; masks say which positions are tokens.

    The tokens of a sequence are its positions with a true mask, in their order: padding may stand
    at the right, at the left or between them. They count from 0 among themselves, for the causal
    mask and the window as well.

    Args:
        q: [batch, seqlen_q, heads, head_dim], float16 or bfloat16.
        k: [batch, seqlen_k, kv_heads, head_dim]; heads must be a multiple of kv_heads.
        v: [batch, seqlen_k, kv_heads, head_dim_v].
        mask_q: [batch, seqlen_q] bool, true where q has a token; everywhere if None.
        mask_k: [batch, seqlen_k] bool, the same of k and v.
        max_seqlen_q: no sequence may have more query tokens; the most of any is taken if None.
        max_seqlen_k: the same of k and v.
        causal: query token i sees the key tokens ``j <= i + keys - queries`` of its sequence.
        window: with causal, how many keys a query sees at most, its own included.
        scale: what q k^T is multiplied by; ``head_dim ** -0.5`` if None. Positive.
        backward: as in `varlen_attention`.

    Returns:
        out [batch, seqlen_q, heads, head_dim_v] in the dtype of q; and lse [batch, heads,
        seqlen_q] float32. Where no token is, and of a query that sees no key, out is 0, lse -inf,
        and gradients are 0.

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
    """
    check_padded(q, k, v, mask_q, mask_k)
    queries, cu_seqlens_q = _tokens(mask_q, q)
    keys, cu_seqlens_k = _tokens(mask_k, k)
    out, lse = varlen_attention(
        _Unpad.apply(q, queries), _Unpad.apply(k, keys), _Unpad.apply(v, keys),
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        causal=causal, window=window, scale=scale, backward=backward,
    )  # fmt: skip
    batch, seqlen_q = q.shape[:2]
    rows = lse.new_full((batch * seqlen_q, lse.shape[0]), float("-inf"))
    rows.index_copy_(0, queries, lse.T)
    lse = rows.view(batch, seqlen_q, lse.shape[0]).transpose(1, 2).contiguous()
    return _Pad.apply(out, queries, batch, seqlen_q), lse


def _tokens(mask: torch.Tensor | None, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the tokens among batch * seqlen, in order, and the cu_seqlens of them packed."""
    if mask is None:
        mask = torch.ones(tensor.shape[:2], dtype=torch.bool, device=tensor.device)
    counts = mask.sum(1, dtype=torch.int32)
    cu_seqlens = torch.zeros(len(counts) + 1, dtype=torch.int32, device=mask.device)
    cu_seqlens[1:] = counts.cumsum(0)
    return mask.flatten().nonzero().squeeze(1), cu_seqlens


def _gathered(padded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[batch, seqlen, heads, dim] to [tokens, heads, dim]."""
    return padded.flatten(0, 1).index_select(0, rows)


def _scattered(tokens: torch.Tensor, rows: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """[tokens, heads, dim] to [batch, seqlen, heads, dim], 0 where there is none."""
    padded = tokens.new_zeros((batch * seqlen, *tokens.shape[1:]))
    return padded.index_copy_(0, rows, tokens).unflatten(0, (batch, seqlen))


class _Unpad(torch.autograd.Function):
    """Padded rows to packed ones."""

    @staticmethod
    def forward(ctx, padded, rows):
        ctx.shape = padded.shape[:2]
        ctx.save_for_backward(rows)
        return _gathered(padded, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        return _scattered(gradient, rows, *ctx.shape), None


class _Pad(torch.autograd.Function):
    """Packed rows to padded ones."""

    @staticmethod
    def forward(ctx, tokens, rows, batch, seqlen):
        ctx.save_for_backward(rows)
        return _scattered(tokens, rows, batch, seqlen)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        return _gathered(gradient, rows), None, None, None
