"""Decode attention as PyTorch operators: argument checks, allocation and kernel launches.

The algorithm of one block is in `block`, the kernels are in `kernels`, and `combine` merges splits.
There is no backward.
"""

import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.attention.decode import kernels
from tlmatrix_kernels.attention.decode.combine import combine
from tlmatrix_kernels.attention.decode.splits import MAX_SPLITS, choose_splits
from tlmatrix_kernels.attention.decode.tiles import tiles_for
from tlmatrix_kernels.attention.decode.validate import Decode, check_cache, check_pages
from tlmatrix_kernels.target import multiprocessors


def decode_attention(
    q,
    k_cache,
    v_cache,
    seqlens_k,
    *,
    window=None,
    scale=None,
    sink=None,
    splits=None,
):
    """Attention of one query per sequence to its cached keys.

    The query is aligned with the last key and attends to all keys.

    Args:
        q: [batch, heads, head_dim], float16 or bfloat16.
        k_cache: [batch, max_seqlen, kv_heads, head_dim], contiguous; heads must be a multiple of
            kv_heads, and query head h uses kv head ``h // (heads // kv_heads)``.
        v_cache: [batch, max_seqlen, kv_heads, head_dim_v]. Both head dimensions are multiples of
            8 up to 256.
        seqlens_k: [batch] int32, the cached keys of each sequence, 0 to max_seqlen. Not copied to
            the host and not checked. Rows of the cache past the length have no effect.
        window: attend to at most the last `window` keys.
        scale: multiplies q k^T; positive; ``head_dim ** -0.5`` if None.
        sink: [heads] float32, float16 or bfloat16, one additional logit per head in the softmax
            denominator; or None.
        splits: into how many splits the keys of a sequence are divided; if None, chosen from the
            shapes and the GPU. Results are bitwise reproducible for a given number.

    Returns:
        out [batch, heads, head_dim_v] in the dtype of q; and lse [batch, heads] float32, the
        natural logarithm of the softmax denominator of each head. Without keys out is 0 and lse is
        the sink, or -inf.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    call = check_cache(q, k_cache, v_cache, seqlens_k, window, scale, sink, splits)
    static = _static_of(call)
    return _decode(
        call, q, (k_cache, v_cache, seqlens_k.contiguous()), sink, k_cache.shape[1],
        lambda out_dtype: kernels.decode(call.dtype, out_dtype, *static),
    )  # fmt: skip


def paged_attention(
    q,
    k_pages,
    v_pages,
    block_table,
    seqlens_k,
    *,
    window=None,
    scale=None,
    sink=None,
    splits=None,
):
    """Attention of one query per sequence to the keys of a paged KV cache.

    Args:
        q: [batch, heads, head_dim], float16 or bfloat16.
        k_pages: [pages, page_size, kv_heads, head_dim], contiguous; page_size is a power of two
            from 16 to 1024.
        v_pages: [pages, page_size, kv_heads, head_dim_v].
        block_table: [batch, max_pages] int32: key j of sequence b is row ``j % page_size`` of page
            ``block_table[b, j // page_size]``. Entries without a visible key are not read, nor are
            pages that are only in such entries. Not copied to the host and not checked.
        seqlens_k: [batch] int32, the keys of each sequence, may be 0. Not copied to the host and
            not checked. Rows of the last page past the length have no effect.
        window: as in `decode_attention`.
        scale: as in `decode_attention`.
        sink: as in `decode_attention`.
        splits: as in `decode_attention`.

    Returns:
        out [batch, heads, head_dim_v] and lse [batch, heads] float32; see `decode_attention`.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    call = check_pages(q, k_pages, v_pages, block_table, seqlens_k, window, scale, sink, splits)
    static, page_size = _static_of(call), k_pages.shape[1]
    return _decode(
        call, q, (k_pages, v_pages, block_table.contiguous(), seqlens_k.contiguous()), sink,
        block_table.shape[1] * page_size,
        lambda out_dtype: kernels.decode(call.dtype, out_dtype, *static, page_size),
    )  # fmt: skip


def _static_of(call: Decode) -> tuple:
    """The compile-time parameters of both kernels."""
    return call.groups, call.head_dim, call.head_dim_v, call.window is not None


def _decode(call: Decode, q, stored, sink, longest: int, build):
    """Compute out and lse for lengths up to `longest`.

    `build(out_dtype)` returns the kernel, which is called with the `stored` tensors.
    """
    q = aligned(q)
    if not q.shape[0] or not longest or not stored[0].numel():
        out, lse = _results(call, q)
        lse[:] = float("-inf") if sink is None else sink
        return out.zero_(), lse
    tiles = tiles_for(call.head_dim, call.head_dim_v, windowed=call.window is not None)
    splits = call.splits or splits_for_call(call, q, longest, tiles)
    return launch(call, q, stored, sink, min(splits, MAX_SPLITS), build)


def splits_for_call(call: Decode, q: torch.Tensor, longest: int, tiles) -> int:
    """The number of splits for lengths up to `longest`."""
    kv_heads = q.shape[1] // call.groups
    blocks = q.shape[0] * kv_heads * -(-call.groups // tiles.rows)
    return choose_splits(
        blocks, -(-longest // tiles.keys), tiles.blocks * multiprocessors(q.device)
    )


def _results(call: Decode, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, _ = q.shape
    out = torch.empty((batch, heads, call.head_dim_v), dtype=q.dtype, device=q.device)
    return out, torch.empty((batch, heads), dtype=torch.float32, device=q.device)


def launch(call: Decode, q, stored, sink, splits: int, build):
    """Compute out and lse in `splits` splits; `build` and `stored` as in `_decode`."""
    out, lse = _results(call, q)
    scalars = (call.scale, call.window or 0)
    if splits == 1 and sink is None:
        build(call.dtype)(q, *stored, out[None], lse[None], *scalars)
        return out, lse
    parts = torch.empty((splits, *out.shape), dtype=torch.float32, device=q.device)
    lse_parts = torch.empty((splits, *lse.shape), dtype=torch.float32, device=q.device)
    build("float32")(q, *stored, parts, lse_parts, *scalars)
    sinks = () if sink is None else (sink.float().contiguous(),)
    kernel = combine(call.dtype, call.head_dim_v, MAX_SPLITS, with_sink=bool(sinks))
    kernel(parts, lse_parts, *sinks, out, lse)
    return out, lse
