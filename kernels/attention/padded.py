"""Attention of padded tensors with masks: unpad, packed attention, pad.

Kernels never read padding, which may be NaN, and spend no time on it. PyTorch's `index_select` and
`index_copy_` gather and scatter the rows of tokens, heads * dim elements each, at memory bandwidth.
No row is gathered twice, so each of the two is exactly the gradient of the other.
"""

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.attention.operators import varlen_attention
from tlmatrix_kernels.attention.validate import check_padded


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
    alignment="bottom_right",
    scale=None,
    backward=None,
):
    """Softmax attention of padded sequences; masks mark the positions that are tokens.

    The tokens of a sequence are its positions with a true mask, in order; padding may be at the
    right, at the left or in between. Token positions, for the causal mask and the window, do not
    count padding.

    Args:
        q: [batch, seqlen_q, heads, head_dim], float16 or bfloat16.
        k: [batch, seqlen_k, kv_heads, head_dim]; heads must be a multiple of kv_heads.
        v: [batch, seqlen_k, kv_heads, head_dim_v].
        mask_q: [batch, seqlen_q] bool, true where q has a token; all true if None.
        mask_k: [batch, seqlen_k] bool, the same for k and v.
        max_seqlen_q: an upper bound of the query tokens of a sequence; computed if None.
        max_seqlen_k: the same for k and v.
        causal: query token i attends to the key tokens ``j <= i + keys - queries`` of its sequence,
            or ``j <= i`` if `alignment` is "top_left".
        window: the most keys that a query attends to, including its own position; needs causal.
        alignment: as in `dense_attention`, of the tokens of each sequence.
        scale: multiplies q k^T; positive; ``head_dim ** -0.5`` if None.
        backward: as in `varlen_attention`.

    Returns:
        out [batch, seqlen_q, heads, head_dim_v] in the dtype of q; and lse [batch, heads,
        seqlen_q] float32. At padding, and for a query with no visible key, out is 0, lse -inf and
        the gradients are 0.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    check_padded(q, k, v, mask_q, mask_k)
    queries, cu_seqlens_q = _tokens(mask_q, q)
    keys, cu_seqlens_k = _tokens(mask_k, k)
    out, lse = varlen_attention(
        _Unpad.apply(q, queries), _Unpad.apply(k, keys), _Unpad.apply(v, keys),
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        causal=causal, window=window, alignment=alignment, scale=scale, backward=backward,
    )  # fmt: skip
    batch, seqlen_q = q.shape[:2]
    rows = lse.new_full((batch * seqlen_q, lse.shape[0]), float("-inf"))
    rows.index_copy_(0, queries, lse.T)
    lse = rows.view(batch, seqlen_q, lse.shape[0]).transpose(1, 2).contiguous()
    return _Pad.apply(out, queries, batch, seqlen_q), lse


def _tokens(mask: torch.Tensor | None, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat indices of the tokens among batch * seqlen positions, and their cu_seqlens."""
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
    """[tokens, heads, dim] to [batch, seqlen, heads, dim], with 0 at padding."""
    padded = tokens.new_zeros((batch * seqlen, *tokens.shape[1:]))
    return padded.index_copy_(0, rows, tokens).unflatten(0, (batch, seqlen))


class _Unpad(torch.autograd.Function):
    """Gathers packed rows from padded ones."""

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
    """Scatters packed rows to padded ones."""

    @staticmethod
    def forward(ctx, tokens, rows, batch, seqlen):
        ctx.save_for_backward(rows)
        return _scattered(tokens, rows, batch, seqlen)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        return _gathered(gradient, rows), None, None, None
