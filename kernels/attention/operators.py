"""Attention as PyTorch operators: argument checks, allocation and kernel launches.

Each operator is an autograd function of q, k, v and sink with the outputs out and lse. lse is for
use outside of autograd (merging, diagnostics) and has no gradient. The algorithm is in `forward`
and `backward`, the kernels are in `kernels`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.attention import kernels
from tlmatrix_kernels.attention.combine import UNIT, combine_parts
from tlmatrix_kernels.attention.reordered import ORDERS, block_shape
from tlmatrix_kernels.attention.rows import PADDING, padded_start, statistic_shape
from tlmatrix_kernels.attention.sink import PART, sink_parts, sink_total
from tlmatrix_kernels.attention.specialized import line_shape
from tlmatrix_kernels.attention.tiles import COMBINE_THREADS, PASS_ROWS, PREPARE_THREADS, padded
from tlmatrix_kernels.attention.validate import Attention, check_dense, check_packed
from tlmatrix_kernels.dtypes import dtype_name


def dense_attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=None,
    alignment="bottom_right",
    sink=None,
    scale=None,
    layout="bshd",
    backward=None,
):
    """Softmax attention of sequences that all have the same lengths.

    Args:
        q: [batch, seqlen_q, heads, head_dim] in layout bshd, [batch, heads, seqlen_q, head_dim]
            in layout bhsd; float16 or bfloat16.
        k: like q, with seqlen_k and kv_heads; heads must be a multiple of kv_heads, and query
            head h uses kv head ``h // (heads // kv_heads)``.
        v: like k, with head_dim_v. Both head dimensions are multiples of 8 up to 256.
        causal: query i attends to the keys ``j <= i + seqlen_k - seqlen_q``, or ``j <= i`` if
            `alignment` is "top_left".
        window: the most keys that a query attends to, including its own position; needs causal.
        alignment: of the causal mask and the window where the lengths differ: "bottom_right", the
            last query beside the last key, or "top_left", the first beside the first.
        sink: [heads], float32 or the dtype of q: adds ``exp(sink[head])`` to the softmax
            denominator of every row, like a key with that logit (unscaled) and the value 0. Finite,
            or -inf for no sink. Differentiable.
        scale: multiplies q k^T; positive; ``head_dim ** -0.5`` if None.
        layout: "bshd" or "bhsd".
        backward: "split" or "grouped", which are bitwise reproducible, or "atomic", "reordered" or,
            on Hopper, "specialized", which are not (see the module `backward`); None selects
            "split" or "grouped" by size.

    Returns:
        out, like q with head_dim_v, in the dtype of q; and lse [batch, heads, seqlen_q] float32,
        the natural logarithm of the softmax denominator of each row. A query with no visible key
        has out 0, lse -inf (or the sink of its head) and zero gradients.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    call = check_dense(q, k, v, causal, window, scale, layout, backward, sink, alignment)
    return attention(q, k, v, sink, call)


def varlen_attention(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    *,
    causal=False,
    window=None,
    alignment="bottom_right",
    sink=None,
    scale=None,
    backward=None,
):
    """Softmax attention of packed sequences of any lengths.

    Args:
        q: [total_q, heads, head_dim], float16 or bfloat16.
        k: [total_k, kv_heads, head_dim]; heads must be a multiple of kv_heads.
        v: [total_k, kv_heads, head_dim_v].
        cu_seqlens_q: [batch + 1] int32, from 0 to total_q: sequence b is the rows from
            cu_seqlens_q[b] up to cu_seqlens_q[b + 1]. Sequences may be empty.
        cu_seqlens_k: the same for k and v.
        max_seqlen_q: an upper bound of the query lengths; computed if None.
        max_seqlen_k: the same for k and v.
        causal: within a sequence, query i attends to the keys ``j <= i + seqlen_k - seqlen_q``, or
            ``j <= i`` if `alignment` is "top_left".
        window: the most keys that a query attends to, including its own position; needs causal.
        alignment: as in `dense_attention`, of each sequence.
        sink: as in `dense_attention`: [heads] float32 or the dtype of q.
        scale: multiplies q k^T; positive; ``head_dim ** -0.5`` if None.
        backward: as in `dense_attention`.

    The check of cu_seqlens copies them to the host, which synchronizes with the GPU: once per
    tensor, and again after PyTorch has modified it in place. If your own kernel writes to one, pass
    a new tensor.

    Returns:
        out [total_q, heads, head_dim_v] in the dtype of q; and lse [heads, total_q] float32, the
        natural logarithm of the softmax denominator of each row. A query with no visible key has
        out 0, lse -inf (or the sink of its head) and zero gradients.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    call, lengths = check_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        causal, window, scale, backward, sink, alignment,
    )  # fmt: skip
    bounds = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    return attention(q, k, v, sink, call, bounds, (lengths.max_seqlen_q, lengths.max_seqlen_k))


def _buffers(q: torch.Tensor, call: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialized out and lse."""
    out = torch.empty((*q.shape[:-1], call.head_dim_v), dtype=q.dtype, device=q.device)
    rows, heads = (-2, -3) if call.layout == "bhsd" else (-3, -2)
    shape = statistic_shape(call.layout, q.shape[0], q.shape[rows], q.shape[heads])
    return out, torch.empty(shape, dtype=torch.float32, device=q.device)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def _parts(like: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.empty((groups, *like.shape), dtype=torch.float32, device=like.device)


def _padded_rows(lse: torch.Tensor, bounds: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialized padded rows (see `rows`) for lse and delta, which the pre-pass fills."""
    if bounds:
        rows = padded_start(lse.shape[-1], len(bounds[0]) - 1)
    else:
        rows = -(-lse.shape[-1] // PADDING) * PADDING
    shape = (*lse.shape[:-1], rows)
    return tuple(torch.empty(shape, dtype=torch.float32, device=lse.device) for _ in range(2))


def reordered_sum(row_lse: torch.Tensor, head_dim: int, order: str) -> torch.Tensor:
    """A zero dq accumulator (see `reordered`) for the rows of `row_lse`."""
    *outer, rows = row_lse.shape
    shape = (*outer, rows // ORDERS[order].rows, *block_shape(order, head_dim))
    return torch.zeros(shape, dtype=torch.float32, device=row_lse.device)


def _combine(parts: torch.Tensor, like: torch.Tensor, call: Attention) -> torch.Tensor:
    """Sum float32 parts [groups, *like.shape], or cast a single one, to a gradient of `like`."""
    gradient = torch.empty_like(like)
    count = parts.numel() // like.numel()
    kernel = combine_parts(count, call.dtype, COMBINE_THREADS)
    kernel(parts.view(count, -1, UNIT), gradient.view(-1, UNIT))
    return gradient


def _sink_gradient(
    sink: torch.Tensor, row_lse: torch.Tensor, row_delta: torch.Tensor
) -> torch.Tensor:
    """Compute dsink [heads] from padded rows of lse and delta."""
    if row_lse.dim() == 2:  # packed
        row_lse, row_delta = row_lse[None], row_delta[None]
    sequences, heads, rows = row_lse.shape
    shape = (heads, sequences, -(-rows // PART))
    parts = torch.empty(shape, dtype=torch.float32, device=sink.device)
    dtype = dtype_name(sink.dtype)
    sink_parts(dtype)(sink, row_lse, row_delta, parts)
    dsink = torch.empty_like(sink)
    sink_total(dtype)(parts.flatten(1), dsink)
    return dsink


def static_of(call: Attention) -> tuple:
    """The compile-time parameters of the forward and backward kernels."""
    return (
        call.layout,
        call.dtype,
        call.groups,
        call.head_dim,
        call.head_dim_v,
        call.mask,
        call.window is not None,
    )


def gradients(family, call, tensors, bounds, lengths, wanted):
    """Compute dq, dk, dv by the strategy of the call, and dsink; None for each not wanted.

    `family` is the module `kernels`, or one with the same factories. `bounds` are the cu_seqlens
    and `lengths` (max_seqlen_q, max_seqlen_k); both are empty for dense attention.
    """
    q, k, v, sink, out, lse, do = tensors
    static = static_of(call)
    longest_q, longest_k = lengths[:1], lengths[1:]
    scalars = (call.scale, call.window or 0)

    row_lse, row_delta = _padded_rows(lse, bounds)
    prepare = family.prepare(call.layout, call.dtype, call.head_dim_v, PASS_ROWS, PREPARE_THREADS)
    prepare(out, do, lse, *bounds[:1], row_lse, row_delta, *longest_q)
    read = (q, k, v, do, row_lse, row_delta, *bounds)
    dsink = _sink_gradient(sink, row_lse, row_delta) if wanted[3] else None
    if not any(wanted[:3]):
        return None, None, None, dsink

    if call.backward == "atomic":
        dq, dk, dv = _zeros(q), _zeros(k), _zeros(v)
        kernel = family.key_gradients(*static, "atomic")
        kernel(*read, dq, dk, dv, *longest_k, *scalars)
        sums = zip((dq, dk, dv), (q, k, v), wanted[:3], strict=True)
        dq, dk, dv = (_combine(part, like, call) if want else None for part, like, want in sums)
    elif call.backward in ("reordered", "specialized"):
        specialized = call.backward == "specialized"
        width = padded(call.head_dim) if specialized else call.head_dim
        dq_sum = reordered_sum(row_lse, width, family.ORDER)
        dq = torch.empty_like(q)
        if family.SHARED_KEYS and call.groups > 1:
            dk, dv = _zeros(k), _zeros(v)
            kernel = family.key_gradients(*static, "reordered")
            kernel(*read, dq_sum, dk, dv, *longest_k, *scalars)
            dk, dv = _combine(dk, k, call), _combine(dv, v, call)
        else:
            dk, dv = torch.empty_like(k), torch.empty_like(v)
            rest = (dk[None], dv[None], *longest_k, *scalars)
            if specialized:
                lines = dq_sum.view(*dq_sum.shape[:-3], *line_shape(width))
                family.specialized_gradients(*static)(*read, lines, *rest)
            else:
                family.key_gradients(*static, "reordered")(*read, dq_sum, *rest)
        restore = family.restore(call.layout, call.dtype, call.head_dim, family.ORDER, width)
        restore(dq_sum, *bounds[:1], dq, *longest_q, call.scale)
    else:
        dq = dk = dv = None
        if wanted[0]:
            dq = torch.empty_like(q)
            kernel = family.query_gradients(*static)
            kernel(*read, dq, *longest_q, *scalars)
        if wanted[1] or wanted[2]:
            split = call.backward == "split"
            parts = (_parts(t, call.groups) if split else torch.empty_like(t)[None] for t in (k, v))
            dk_parts, dv_parts = parts
            kernel = family.key_gradients(*static, call.backward)
            kernel(*read, dk_parts, dv_parts, *longest_k, *scalars)
            dk = _combine(dk_parts, k, call) if split else dk_parts[0]
            dv = _combine(dv_parts, v, call) if split else dv_parts[0]
    found = zip((dq, dk, dv, dsink), wanted, strict=True)
    return tuple(gradient if want else None for gradient, want in found)


def _no_gradients(tensors, wanted):
    """Zero gradients, for calls without queries or without keys."""
    return tuple(
        torch.zeros_like(tensor) if want else None
        for tensor, want in zip(tensors, wanted, strict=True)
    )


def _no_keys(sink: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Fill out and lse [.., heads, rows] for queries that all have no visible key."""
    out.zero_()
    lse.fill_(float("-inf")) if sink is None else lse.copy_(sink[:, None])


def attention(q, k, v, sink, call: Attention, bounds=(), lengths=(), build=None, family=kernels):
    """Compute out and lse, after the argument checks.

    Args:
        q: as the operator has it, and so k, v and sink.
        k: keys.
        v: values.
        sink: logits, or None.
        call: the checked options.
        bounds: cu_seqlens_q and cu_seqlens_k of packed attention, contiguous.
        lengths: max_seqlen_q and max_seqlen_k of packed attention.
        build: returns the forward kernel; it is only called if there is something to compute.
        family: the module of the backward kernels.
    """
    if build is None:
        sinks = () if sink is None else (dtype_name(sink.dtype),)
        build = partial(kernels.forward, *static_of(call), *sinks)
    needed = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (q, k, v, sink)
    )
    if not needed:  # PyTorch takes as long for an autograd function as a launch does
        return _forward(q, k, v, sink, call, bounds, lengths, build)[1:]
    return _Attention.apply(q, k, v, sink, call, bounds, lengths, build, family)


def _forward(q, k, v, sink, call: Attention, bounds, lengths, build: Callable):
    """The inputs as the kernel read them, out and lse."""
    q, k, v = aligned(q), aligned(k), aligned(v)
    sinks = () if sink is None else (sink.contiguous(),)
    out, lse = _buffers(q, call)
    if k.numel() == 0:
        _no_keys(sink, out, lse)
    elif lse.numel():
        scalars = (*lengths[:1], call.scale, call.window or 0)
        build()(q, k, v, *sinks, *bounds, out, lse, *scalars)
    return (q, k, v, *(sinks or (None,))), out, lse


class _Attention(torch.autograd.Function):
    """The autograd function of all operators on one GPU."""

    @staticmethod
    def forward(ctx, q, k, v, sink, call: Attention, bounds, lengths, build: Callable, family):
        inputs, out, lse = _forward(q, k, v, sink, call, bounds, lengths, build)
        ctx.call, ctx.lengths, ctx.family = call, lengths, family
        ctx.save_for_backward(*inputs, out, lse, *bounds)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, _dlse):
        q, k, v, sink, out, lse, *bounds = ctx.saved_tensors
        wanted, rest = ctx.needs_input_grad[:4], (None,) * 5
        if out.numel() == 0 or k.numel() == 0:
            return *_no_gradients((q, k, v, sink), wanted), *rest
        tensors = (q, k, v, sink, out, lse, aligned(do))
        return *gradients(ctx.family, ctx.call, tensors, bounds, ctx.lengths, wanted), *rest
