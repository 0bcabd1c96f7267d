"""Packed sequences of equal length run as a dense batch: a baseline for the cost of packing."""

from tlmatrix_kernels.attention.operators import dense_attention


def equal_lengths_attention(
    q,
    k,
    v,
    max_seqlen_q,
    max_seqlen_k,
    *,
    causal=False,
    window=None,
    alignment="bottom_right",
    scale=None,
    backward=None,
):
    """`dense_attention` of packed tensors: the same computation without cu_seqlens.

    Args:
        q: [total_q, heads, head_dim]; every sequence has max_seqlen_q rows.
        k: [total_k, kv_heads, head_dim]; every sequence has max_seqlen_k rows.
        v: [total_k, kv_heads, head_dim_v].
        max_seqlen_q: the length of every query sequence.
        max_seqlen_k: the length of every key sequence.
        causal: as in `dense_attention`.
        window: as in `dense_attention`.
        alignment: as in `dense_attention`.
        scale: as in `dense_attention`.
        backward: as in `dense_attention`.

    Returns:
        out, [total_q, heads, head_dim_v], and lse, [heads, total_q].

    Raises:
        NotImplementedError: the sequences differ in length.
    """
    batch = q.shape[0] // max(max_seqlen_q, 1)
    if q.shape[0] != batch * max_seqlen_q or k.shape[0] != batch * max_seqlen_k:
        raise NotImplementedError("sequences differ in length")
    dense = [tensor.reshape(batch, -1, *tensor.shape[1:]) for tensor in (q, k, v)]
    options = {"causal": causal, "window": window, "alignment": alignment, "scale": scale}
    out, lse = dense_attention(*dense, **options, backward=backward)
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
