"""Attention on Blackwell as a PyTorch operator: argument checks, allocation and kernel launches."""

import warnings
from functools import partial

from tlmatrix_kernels.attention.operators import attention, static_of
from tlmatrix_kernels.attention.sm100 import kernels
from tlmatrix_kernels.attention.validate import check_sm100


def sm100_attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=None,
    alignment="bottom_right",
    scale=None,
    layout="bshd",
    variant="wasp",
):
    """Softmax attention with tcgen05 MMAs, for GPUs of compute capability 10 (sm_100a).

    Args:
        q: as in `dense_attention`.
        k: as in `dense_attention`.
        v: as in `dense_attention`.
        causal: as in `dense_attention`.
        window: as in `dense_attention`.
        alignment: as in `dense_attention`.
        scale: as in `dense_attention`.
        layout: as in `dense_attention`.
        variant: the forward kernel: "ss", "ts" or "wasp"; see `sm100.forward`. If TileLang fails to
            compile "wasp", "ts" runs instead, with a RuntimeWarning.

    Returns:
        out and lse, as `dense_attention`. dq, and dk and dv of groups, are sums of float32 atomics.
        Gradients support head dimensions up to 128.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    call = check_sm100(q, k, v, causal, window, scale, layout, variant, alignment)
    return attention(q, k, v, None, call, build=partial(_kernel, variant, call), family=kernels)


def _kernel(variant, call):
    """The kernel of a variant; that of `ts` if `wasp` fails to compile."""
    static = static_of(call)
    if variant != "wasp":
        return kernels.forward(variant, *static)
    try:
        return kernels.forward(variant, *static)
    except Exception as error:  # noqa: BLE001 - compilers raise many types
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"variant 'wasp' cannot be built here, 'ts' runs in its place ({reason})",
            RuntimeWarning,
            stacklevel=7,
        )
        return kernels.forward("ts", *static)
