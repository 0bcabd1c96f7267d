"""Operators of every form that a spec may bind, right and with a mistake."""

import ctypes

import tilelang
import tilelang.language as T
import torch
from torch import nn


class Norm(torch.autograd.Function):
    """RMS norm with a backward of its own."""

    @staticmethod
    def forward(ctx, x, w, eps=1e-5):
        inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, w, inverse)
        return (x.float() * inverse * w.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, w, inverse = ctx.saved_tensors
        hat, g = x.float() * inverse, dy.float() * w.float()
        dx = inverse * (g - hat * (g * hat).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * hat).sum(0).to(w.dtype), None


class Forgetful(Norm):
    @staticmethod
    def backward(ctx, dy):
        dx, _, _ = Norm.backward(ctx, dy)
        return dx, None, None


class WithoutContext(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, (dy * x).sum(0)


def norm(x, w):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-5)


def detached_norm(x, w):
    return norm(x, w).detach()


def without_w(x, w):
    return norm(x, torch.ones_like(w))


def product(x, w):
    return x * w


def product_of_x(x, w):
    """The reference of an operator that has no use for w."""
    return 2 * x


def of_x(x, w):
    return 2 * x


class Block(nn.Module):
    """A linear layer and a norm, with a buffer that a call changes."""

    def __init__(self, cols, out, bias=True):
        super().__init__()
        self.proj = nn.Linear(cols, out, bias=bias)
        self.norm = nn.LayerNorm(out)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.norm(self.proj(x)) * self.calls


def block(x, proj_weight, proj_bias, norm_weight, norm_bias):
    y = torch.nn.functional.linear(x, proj_weight, proj_bias)
    return torch.nn.functional.layer_norm(y, y.shape[-1:], norm_weight, norm_bias)


def biased(x, norm_weight, norm_bias, proj_weight):
    y = torch.nn.functional.linear(x, proj_weight)
    return torch.nn.functional.layer_norm(y, y.shape[-1:], norm_weight, norm_bias)


@torch.library.custom_op("tlmatrix_bound::shifted", mutates_args=())
def shifted(x: torch.Tensor, rows: int, shift: float = 1.0) -> torch.Tensor:
    return 2 * x + shift + rows


def shifted_reference(x, rows, shift=1.0):
    return 2 * x + shift + rows


def add_(x, w):
    x.add_(w)


def add_beyond_(x, w):
    """Writes one element past the end of what it changes."""
    add_(x, w)
    ctypes.memset(x.data_ptr() + x.nbytes, 0, x.element_size())


def same(x):
    return x.clone()


def returns_its_input(x):
    return x


def returns_a_view(x):
    return x.view(-1).view_as(x)


def adds_to_input(x, w):
    return x.add_(w)


def added(x, w):
    return x + w


def fills(x, out):
    out.copy_(2 * x)


def adds_to(x, out):
    out += 2 * x


def forgets_a_row(x, out):
    out[1:] = 2 * x[1:]


def nested(x):
    return {"out": 2 * x, "aux": (x.sum(0), x.amax(0))}


def doubled(x):
    return 2 * x


def doubled_and_largest(x):
    return 2 * x, x.amax(0)


@tilelang.jit(out_idx=[-1])
def lazy(rows, cols, dtype="float32", threads=32):
    @T.prim_func
    def main(x: T.Tensor((rows, cols), dtype), y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=threads) as row:
            for col in T.Parallel(cols):
                y[row, col] = x[row, col] * 2.0

    return main


@tilelang.jit
def lazy_with_buffer(rows, cols, dtype="float32", threads=32):
    @T.prim_func
    def main(x: T.Tensor((rows, cols), dtype), y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=threads) as row:
            for col in T.Parallel(cols):
                y[row, col] = x[row, col] * 2.0

    return main


def scaled_by(x, factors: tuple[float, float], more=(1,), least: list | None = None):
    assert isinstance(least, list)
    return x * float(len({factors: 1, more: 2})) * sum(factors) / 2


@tilelang.jit
def eager_with_factors(x, factors, threads: int = 32):
    rows, cols = T.const("rows cols")
    x: T.Tensor[[rows, cols], T.float32]
    y = T.empty((rows, cols), T.float32)
    with T.Kernel(rows, threads=threads) as row:
        for col in T.Parallel(cols):
            y[row, col] = x[row, col] * (factors[0] + factors[1])
    return y


@tilelang.jit
def eager(x, threads: int = 32):
    rows, cols = T.const("rows cols")
    x: T.Tensor[[rows, cols], T.float32]
    y = T.empty((rows, cols), T.float32)
    with T.Kernel(rows, threads=threads) as row:
        for col in T.Parallel(cols):
            y[row, col] = x[row, col] * 2.0
    return y


def asks_the_gpu(x):
    assert x.is_cuda
    assert torch.cuda.is_available()
    major, _ = torch.cuda.get_device_capability(x.device)
    assert major == 9
    assert torch.cuda.get_device_properties(x.device).multi_processor_count > 0
    torch.cuda.current_stream().synchronize()
    return torch.empty_like(x, device="cuda").copy_(lazy(*x.shape)(x))


def doubled_with_scratch(x: torch.Tensor, work: torch.Tensor) -> torch.Tensor:
    """Writes to `work` what it does not return."""
    return work.copy_(x).add_(x) + 0
