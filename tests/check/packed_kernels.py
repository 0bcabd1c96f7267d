"""Packed kernels in TileLang with planted bugs, their operators and float64 references.

x: [total, CHANNELS]; sequence b owns the rows from cu_seqlens[b] up to cu_seqlens[b + 1].
"""

from itertools import pairwise

import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

ROWS, CHANNELS, TAPS = 8, 4, 3


# Softmax of each column over the rows of a sequence ---------------------------------------------


@jit_kernel(
    x="f32[total, CHANNELS]", offsets="i32[batch + 1]", y="f32[total, CHANNELS]", name="softmax"
)
def _softmax_kernel(x, offsets, y, total, batch, bug):
    with T.Kernel(batch, threads=32) as sequence:
        largest = T.alloc_fragment((CHANNELS,), "float32")
        summed = T.alloc_fragment((CHANNELS,), "float32")
        start, end = offsets[sequence], offsets[sequence + 1]
        T.fill(largest, -T.infinity("float32"))
        T.fill(summed, 0.0)
        for tile in T.serial(T.ceildiv(end - start, ROWS)):
            for i in T.serial(ROWS):
                row = start + tile * ROWS + i
                if row < T.if_then_else(bug == "read", total, end):
                    for j in T.Parallel(CHANNELS):
                        largest[j] = T.max(largest[j], x[row, j])
        for row in T.serial(start, end):
            for j in T.Parallel(CHANNELS):
                summed[j] += T.exp(x[row, j] - largest[j])
        for tile in T.serial(T.ceildiv(end - start, ROWS)):
            for i, j in T.Parallel(ROWS, CHANNELS):
                row = start + tile * ROWS + i
                if row < T.if_then_else(bug == "store", total, end):
                    y[row, j] = T.exp(x[row, j] - largest[j]) / summed[j]


def segment_softmax(x, cu_seqlens, bug=None):
    """Softmax over the rows of each sequence."""
    y = torch.empty_like(x)
    _softmax_kernel(len(x), len(cu_seqlens) - 1, bug)(x, cu_seqlens, y)
    return y


def softmax_reference(x, cu_seqlens):
    return torch.cat([x[:0], *(part.softmax(0) for part in _parts(x, cu_seqlens))])


# Sums of the rows of a sequence -----------------------------------------------------------------


@jit_kernel(
    x="f32[total, CHANNELS]",
    offsets="i32[batch + 1]",
    y="f32[batch, CHANNELS]",
    name="sums",
    threads=32,
)
def _sums_kernel(x, offsets, y, total, batch, bug):
    carry = T.alloc_fragment((CHANNELS,), "float32")
    for sequence in T.serial(batch):
        start, end = offsets[sequence], offsets[sequence + 1]
        if bug != "carry" or end > start:
            T.fill(carry, 0.0)
        for row in T.serial(start, end):
            for j in T.Parallel(CHANNELS):
                carry[j] += x[row, j]
        for j in T.Parallel(CHANNELS):
            y[sequence, j] = carry[j]


def segment_sums(x, cu_seqlens, bug=None):
    """Sums of the rows of each sequence, with a running sum that is cleared between sequences."""
    y = x.new_empty(len(cu_seqlens) - 1, CHANNELS)
    _sums_kernel(len(x), len(cu_seqlens) - 1, bug)(x, cu_seqlens, y)
    return y


def sums_reference(x, cu_seqlens):
    return torch.stack([part.sum(0) for part in _parts(x, cu_seqlens)])


# Rows of each sequence doubled, by starts and lengths ---------------------------------------------


@jit_kernel(
    x="f32[total, CHANNELS]",
    starts="i32[batch]",
    lens="i32[batch]",
    y="f32[total, CHANNELS]",
    name="double",
)
def _double_kernel(x, starts, lens, y, total, batch, longest, bug):
    with T.Kernel(T.ceildiv(longest, ROWS), batch, threads=32) as (tile, sequence):
        start, length = starts[sequence], lens[sequence]
        for i, j in T.Parallel(ROWS, CHANNELS):
            place = tile * ROWS + i
            if bug == "store":
                if (tile * ROWS < length) & (start + place < total):
                    y[start + place, j] = x[start + place, j] * 2.0
            elif place < length:
                y[start + place, j] = x[start + place, j] * 2.0


def doubled(x, starts, lens, bug=None):
    """Twice the rows of each sequence."""
    y = torch.empty_like(x)
    if len(x):
        _double_kernel(len(x), len(lens), int(lens.max()), bug)(x, starts, lens, y)
    return y


def doubled_reference(x, starts, lens):
    return 2 * x


# Depthwise causal convolution along each sequence -----------------------------------------------


@tilelang.jit
def _conv_kernel(total, batch, longest, backward, bug):
    """y[t] = sum of w[k] x[t - k]; backward dx[t] = sum of w[k] dy[t + k], in a sequence."""
    step = 1 if backward else -1

    @T.prim_func
    def conv(
        x: T.Tensor((total, CHANNELS), "float32"),
        w: T.Tensor((TAPS, CHANNELS), "float32"),
        offsets: T.Tensor((batch + 1,), "int32"),
        y: T.Tensor((total, CHANNELS), "float32"),
    ):
        with T.Kernel(T.ceildiv(longest, ROWS), batch, threads=32) as (tile, sequence):
            start, end = offsets[sequence], offsets[sequence + 1]
            for i, j in T.Parallel(ROWS, CHANNELS):
                row = start + tile * ROWS + i
                if row < end:
                    y[row, j] = 0.0
                    for k in T.serial(TAPS):
                        other = row + step * k
                        if bug == "boundary":
                            if (other >= 0) & (other < total):
                                y[row, j] += w[k, j] * x[other, j]
                        elif (other >= start) & (other < end):
                            y[row, j] += w[k, j] * x[other, j]

    return conv


class Conv(torch.autograd.Function):
    """The convolution with its gradients; that of w by PyTorch."""

    @staticmethod
    def forward(ctx, x, w, cu_seqlens, bug):
        ctx.save_for_backward(x, w, cu_seqlens)
        ctx.bug = bug
        return _convolved(x, w, cu_seqlens, False, bug == "forward" and "boundary")

    @staticmethod
    def backward(ctx, dy):
        x, w, cu_seqlens = ctx.saved_tensors
        dy = dy.contiguous()
        dx = _convolved(dy, w, cu_seqlens, True, ctx.bug == "backward" and "boundary")
        dw = torch.zeros_like(w)
        for part, its in zip(_parts(x, cu_seqlens), _parts(dy, cu_seqlens), strict=True):
            for k in range(min(TAPS, len(part))):
                dw[k] += (part[: len(part) - k] * its[k:]).sum(0)
        return dx, dw, None, None


def _convolved(x, w, cu_seqlens, backward, bug):
    y = torch.empty_like(x)
    longest = int(cu_seqlens.diff().max())
    if longest:
        _conv_kernel(len(x), len(cu_seqlens) - 1, longest, backward, bug)(x, w, cu_seqlens, y)
    return y


def conv(x, w, cu_seqlens, bug=None):
    """Depthwise causal convolution along each sequence, differentiable."""
    return Conv.apply(x, w, cu_seqlens, bug)


def conv_reference(x, w, cu_seqlens):
    made = [x[:0]]
    for part in _parts(x, cu_seqlens):
        shifted = [torch.cat([part.new_zeros(k, CHANNELS), part])[: len(part)] for k in range(TAPS)]
        made.append(sum(w[k] * each for k, each in enumerate(shifted)))
    return torch.cat(made)


# An operator that mixes sequences on purpose ------------------------------------------------------


def centred(x, cu_seqlens, bug=None):
    """All rows less their mean."""
    return (x - x.mean(0, keepdim=True)).to(x.dtype)


def _parts(x, cu_seqlens):
    return [x[a:b] for a, b in pairwise(cu_seqlens.tolist())]


# Sums of the rows of sequences in pages, right or with a read that no result depends on ---------


@tilelang.jit
def page_sums_kernel(page_size, every_entry):
    pages, batch, most = T.dynamic("pages, batch, most")

    @T.prim_func
    def page_sums(
        Pool: T.Tensor((pages, page_size, 8), "float32"),
        Table: T.Tensor((batch, most), "int32"),
        Lengths: T.Tensor((batch,), "int32"),
        Y: T.Tensor((batch, 8), "float32"),
    ):
        with T.Kernel(batch, threads=32) as b:
            rows = T.alloc_shared([page_size, 8], "float32")
            total = T.alloc_fragment([8], "float32")
            T.clear(total)
            count = most if every_entry else T.ceildiv(Lengths[b], page_size)
            for p in T.serial(count):
                T.copy(Pool[Table[b, p], 0:page_size, 0:8], rows)
                for i in T.serial(page_size):
                    for j in T.Parallel(8):
                        if p * page_size + i < Lengths[b]:
                            total[j] += rows[i, j]
            for j in T.Parallel(8):
                Y[b, j] = total[j]

    return page_sums


def page_sums(pool, table, lengths, every_entry):
    y = pool.new_empty(len(lengths), 8)
    page_sums_kernel(pool.shape[1], every_entry)(pool, table, lengths, y)
    return y


def page_reference(pool, table, lengths):
    found = []
    for entries, length in zip(table.tolist(), lengths.tolist(), strict=True):
        count = -(-length // pool.shape[1])
        rows = pool[torch.tensor(entries[:count], dtype=torch.int64)].flatten(0, 1)[:length]
        found.append(rows.sum(0))
    return torch.stack(found)
