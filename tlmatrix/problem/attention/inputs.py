"""The tensors of an attention case, generated from a seed and moved to the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

import torch

from tlmatrix.dtypes import dtype_named, torch_dtype
from tlmatrix.problem.attention.reference import Operands
from tlmatrix.problem.distributions import (
    SHIFT,
    draw,
    extreme_size,
    generator,
    replacement_values,
)

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting

# In the range of float16, and far from all logits of `tlmatrix.problem.distributions`.
_FAR = {"absent": float("-inf"), "faint": -1e4, "dominant": 1e4}
_MIXED = ("usual", "absent", "faint", "dominant")
_STRONG = (5.0, 16.0)
_STRONGEST_OF_FLOAT16 = 5.0
_LARGEST_SHIFT = 16.0
"""The largest shift of q and k: products of more than a small scale stay in float16's range."""
_LOW = 2.0**18
"""Minus scores below the finite numbers that stand for -inf in kernels: -1e4, -5e4, -65504."""


def shape_of(setting: Setting, name: str) -> tuple[int, ...]:
    """The shape of q, k, v or do in the layout of the setting."""
    heads = setting.heads if name in ("q", "do") else setting.kv_heads
    dim = setting.head_dim if name in ("q", "k") else setting.head_dim_v
    starts = setting.starts_q if name in ("q", "do") else setting.starts_k
    if setting.packed:
        return (starts[-1], heads, dim)
    length = starts[1]
    if setting.layout == "bshd":
        return (setting.batch, length, heads, dim)
    return (setting.batch, heads, length, dim)


def generate_operands(
    setting: Setting, distribution: str, seed: int, device: torch.device, *, zigzag: bool = False
) -> Operands:
    """q, k, v, do and, if the setting has one, the sink [heads], from a distribution.

    `zigzag` is whether ranks have the first and the last chunks of sequences (see `_halves`).
    """
    source = generator(seed)
    dtype = torch_dtype(setting.dtype)
    # Of extreme values, the first input is v: scores and their gradients stay finite.
    first = 2 if distribution == "extreme" else 0
    drawn = "normal" if distribution == "shifted" else distribution
    q, k, v, do = (
        draw(
            drawn, source, shape_of(setting, name), dtype, index=index - first,
            cotangent=name == "do",
        )
        for index, name in enumerate(("q", "k", "v", "do"))
    )  # fmt: skip
    if (size := cotangent_size(distribution, dtype)) != 1:
        do = do * size
    if distribution == "cancelling":
        q, k, v, do = _cancelling(setting, (q, k, v, do))
    elif distribution == "halves":
        q, k, v, do = _halves(setting, (q, k, v, do), zigzag=zigzag)
    elif distribution == "shifted":
        q, k = _shifted(setting, q, k)
    sink = None
    if setting.sink is not None:
        sink = generate_sink(setting.sink, source, setting.heads, torch_dtype(setting.sink_dtype))
        if setting.dtype == "float16":
            # More than that, and less than a dominant sink, makes all weights subnormal.
            sink = torch.where(sink < SHIFT, sink.clamp_max(_STRONGEST_OF_FLOAT16), sink)
        if distribution == "shifted":
            sink = torch.where(sink.abs() < SHIFT, sink - SHIFT, sink)
    # Moved last: a GPU rounds a sum with a number that float16 does not have otherwise than a CPU.
    return Operands(q, k, v, do, sink).to(device)


def generate_sink(
    name: str, source: torch.Generator, heads: int, dtype: torch.dtype
) -> torch.Tensor:
    """A sink [heads] of a kind in `SINKS`, or `usual` (normal or strong), on the CPU."""
    sink = torch.randn(heads, generator=source, dtype=torch.float32)
    low, high = _STRONG
    strong = torch.rand(heads, generator=source) * (high - low) + low
    usual = "strong" if bool(torch.rand((), generator=source) < 0.5) else "normal"
    kinds = _MIXED if name == "mixed" else (name,)
    lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)
    for head, each in enumerate(islice(cycle(kinds), heads)):
        if each == "lowest":
            sink[head] = lowest
        elif each in _FAR:
            sink[head] = _FAR[each]
        elif "strong" in (each, usual if each == "usual" else ""):
            sink[head] = strong[head]
    return sink.to(dtype)


def cotangent_size(distribution: str, dtype: torch.dtype) -> float:
    """The factor of do: small beside extreme values of v, so that their products stay finite."""
    return 2 / extreme_size(dtype) if distribution == "extreme" else 1.0


def _cancelling(setting: Setting, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """q, k, v, do for which the query heads of a group give large parts of dk and dv that cancel.

    All rows of q have one direction, keys are small, and so the softmax weights nearly equal; do
    has one sign in a head and the opposite in the next, and v one sign in a row, negative in every
    third: the terms of a part of dv (P^T do) and of dk (dS^T q) have one sign.
    """
    q, k, v, do = tensors
    heads, rows = (1, 2) if setting.layout == "bhsd" else (-2, -3)
    v, do = v.clone(), do.clone()
    v.movedim(rows, 0)[::3].neg_()
    do.movedim(heads, 0)[1::2].neg_()
    return q.abs(), k - 0.5, v, do


def _halves(
    setting: Setting, tensors: tuple[torch.Tensor, ...], *, zigzag: bool
) -> tuple[torch.Tensor, ...]:
    """q, k, v, do for which each half of a sequence gives large parts that cancel.

    Keys are all positive and weights nearly equal; v, and so dS, is negative for the second half of
    the keys that the last query sees, and do for the second half of the queries. Each half of the
    keys gives a part of out and of dq with terms of one sign, each half of the queries one of dk
    and dv. In the order `zigzag`, where a rank has rows of both halves, v and do are negative in
    the second and the third quarter.
    """
    q, k, v, do = (tensor.abs() for tensor in tensors)
    _negate_half(setting, v, setting.starts_k, setting.lengths_k, setting.window, zigzag=zigzag)
    _negate_half(setting, do, setting.starts_q, setting.lengths_q, None, zigzag=zigzag)
    return q / 4, k, v, do


def _negate_half(
    setting: Setting,
    tensor: torch.Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
    window: int | None,
    *,
    zigzag: bool,
) -> None:
    """Negate the second half of the last `window` rows of each sequence, or two quarters."""
    rows = tensor if setting.packed else tensor.movedim(2 if setting.layout == "bhsd" else 1, 0)
    ends = starts[1:] if setting.packed else (len(rows),)
    for end, length in zip(ends, lengths, strict=False):
        visible = length if window is None else min(window, length)
        if zigzag:
            rows[end - visible + visible // 4 : end - visible // 4].neg_()
        else:
            rows[end - visible // 2 : end].neg_()


def _shifted(
    setting: Setting, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Q and k for which all scores are about -200, and differ by about 1."""
    size = abs(setting.softmax_scale) * max(setting.head_dim, 1)
    shift = min((SHIFT / size) ** 0.5, _LARGEST_SHIFT) if size else _LARGEST_SHIFT
    # The noise of k differs between the keys of a query; that of q hardly matters.
    return q / 4 + shift, k / 8 - shift


def low_scores(setting: Setting, operands: Operands) -> dict[str, torch.Tensor] | None:
    """Q and k for which all scores are equal and about -2**18; None if their dtype has none."""
    size = setting.softmax_scale * setting.head_dim
    if not size:
        return None
    root = 2.0 ** (round(math.log2(_LOW / abs(size))) // 2)
    if root > dtype_named(setting.dtype).largest:
        return None
    q = torch.full_like(operands.q, math.copysign(root, size))
    return {"q": q, "k": torch.full_like(operands.k, -root)}


def generate_replacements(setting: Setting, seed: int, device: torch.device) -> Operands:
    """The same tensors with values from `replacement_values`, for relations."""
    source = generator(seed)
    shapes = [shape_of(setting, name) for name in ("q", "k", "v", "do")]
    q, k, v, do = (
        each.to(device) for each in replacement_values(source, shapes, torch_dtype(setting.dtype))
    )
    sink = None
    if setting.sink is not None:
        sink = replacement_values(source, [(setting.heads,)], torch_dtype(setting.sink_dtype))[
            0
        ].to(device)
    return Operands(q, k, v, do, sink)
