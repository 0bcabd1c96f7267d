"""Between packed rows `[total, dim]` and padded ones `[batch, max_len, dim]`, and back."""

import tilelang
import tilelang.language as T
import torch
from torch.autograd.function import once_differentiable


@tilelang.jit
def pad_kernel(dtype, block_t=16, block_d=64, threads=128):
    total, dim, bounds, batch, max_len = T.dynamic("total, dim, bounds, batch, max_len")

    @T.prim_func
    def pad_rows(
        X: T.Tensor((total, dim), dtype),
        Offsets: T.Tensor((bounds,), "int32"),
        value: T.float32,
        Out: T.Tensor((batch, max_len, dim), dtype),
    ):
        with T.Kernel(
            T.ceildiv(dim, block_d), T.ceildiv(max_len, block_t), batch, threads=threads
        ) as (bd, bt, b):
            start = Offsets[b]
            length = Offsets[b + 1] - start
            for i, j in T.Parallel(block_t, block_d):
                t = bt * block_t + i
                d = bd * block_d + j
                if t < max_len and d < dim:
                    if t < length:
                        Out[b, t, d] = X[start + t, d]
                    else:
                        Out[b, t, d] = T.cast(value, dtype)

    return pad_rows


@tilelang.jit
def unpad_kernel(dtype, block_t=16, block_d=64, threads=128):
    total, dim, bounds, batch, max_len = T.dynamic("total, dim, bounds, batch, max_len")

    @T.prim_func
    def unpad_rows(
        Padded: T.Tensor((batch, max_len, dim), dtype),
        Offsets: T.Tensor((bounds,), "int32"),
        Y: T.Tensor((total, dim), dtype),
    ):
        with T.Kernel(
            T.ceildiv(dim, block_d), T.ceildiv(max_len, block_t), batch, threads=threads
        ) as (bd, bt, b):
            start = Offsets[b]
            length = Offsets[b + 1] - start
            for i, j in T.Parallel(block_t, block_d):
                t = bt * block_t + i
                d = bd * block_d + j
                if t < length and d < dim:
                    Y[start + t, d] = Padded[b, t, d]

    return unpad_rows


def _pad(x, offsets, max_len, value):
    batch = len(offsets) - 1
    out = torch.empty(batch, max_len, x.shape[1], dtype=x.dtype, device=x.device)
    if not x.numel():
        return out.fill_(value)
    pad_kernel(str(x.dtype).split(".")[-1])(x, offsets, value, out)
    return out


def _unpad(padded, offsets, total):
    y = torch.empty(total, padded.shape[2], dtype=padded.dtype, device=padded.device)
    if y.numel():
        unpad_kernel(str(y.dtype).split(".")[-1])(padded.contiguous(), offsets, y)
    return y


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offsets, max_len, value):
        ctx.save_for_backward(offsets)
        ctx.total = len(x)
        return _pad(x, offsets, max_len, value)

    @staticmethod
    @once_differentiable
    def backward(ctx, dpadded):
        return _unpad(dpadded, *ctx.saved_tensors, ctx.total), None, None, None


def pad_packed(x, offsets, max_len, value=None):
    """Rows of sequence b go to `out[b, : length]`; `value`, or 0, fills what is left."""
    return _Pad.apply(x, offsets, max_len, 0.0 if value is None else value)


def reference(x, offsets, max_len, value=0.0):
    parts = x.tensor_split(offsets[1:-1].tolist())
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)
    return padded[:, :max_len]
