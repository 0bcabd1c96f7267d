"""Attention on Blackwell as a PyTorch operator: checked arguments in, buffers allocated."""

import warnings

import torch

from tlmatrix_kernels.attention.operators import attention_buffers, ready
from tlmatrix_kernels.attention.sm100 import kernels
from tlmatrix_kernels.attention.validate import check_sm100

__all__ = ["sm100_attention"]


def sm100_attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=None,
    scale=None,
    layout="bshd",
    variant="wasp",
):
    """Softmax attention with tcgen05 products, for GPUs of compute capability 10 (sm_100a).

    Args:
        q: as in `dense_attention`, like all that follow but the last.
        k: see there.
        v: see there.
        causal: see there.
        window: see there.
        scale: see there.
        layout: see there.
        variant: "ss", "ts" or "wasp"; see `sm100.forward`. Where the compiler cannot build
            "wasp", "ts" runs in its place, with a RuntimeWarning.

    Returns:
        out and lse, as `dense_attention`; without gradients.

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
    """
    call = check_sm100(q, k, v, causal, window, scale, layout, variant)
    with torch.no_grad():
        q, k, v = ready(q), ready(k), ready(v)
        out, lse = attention_buffers(q, call)
        if k.numel() == 0:
            return out.zero_(), lse.fill_(float("-inf"))
        if lse.numel():
            kernel = _kernel(variant, call)
            kernel(q, k, v, out, lse, call.scale, call.window or 0)
    return out, lse


def _kernel(variant, call):
    """The kernel of a variant, or that of `ts` where `wasp` cannot be built."""
    static = (
        call.layout,
        call.dtype,
        call.groups,
        call.head_dim,
        call.head_dim_v,
        call.causal,
        call.window is not None,
    )
    if variant != "wasp":
        return kernels.forward(variant, *static)
    try:
        return kernels.forward(variant, *static)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises, it is no kernel
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"variant 'wasp' cannot be built here, 'ts' runs in its place ({reason})",
            RuntimeWarning,
            stacklevel=3,
        )
        return kernels.forward("ts", *static)
