"""Generated calls of the project's own kernels, forward and backward, for the sanitizers.

`sanitized_case(number)` is one call with its shapes, dtypes and options drawn from the number.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import dense_attention, varlen_attention
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.norm import rms_norm

__all__ = ["SanitizedCase", "sanitized_case"]

DTYPES = (torch.float16, torch.bfloat16)
# Packed attention has the most ways to go wrong.
KINDS = ("packed", "packed", "packed", "dense", "dense", "gemm", "rms_norm")


@dataclass(frozen=True)
class SanitizedCase:
    """A call, in words and as a function, and which of its kernels' rows are whose."""

    name: str
    call: Callable[[], object]
    sequences: dict[str, Any] = field(default_factory=dict)

    def reports(self):
        """What the sanitizers say to it."""
        with interpret(sanitize=True, on_report="keep", sequences=self.sequences) as run:
            self.call()
        return run.reports


def sanitized_case(number):
    draw = random.Random(f"sanitized case {number}")
    kind = draw.choice(KINDS)
    generator = torch.Generator().manual_seed(number)

    def tensor(dtype, *shape):
        return torch.randn(shape, generator=generator).to(dtype)

    return _MAKERS[kind](draw, tensor)


def _packed(draw, tensor):
    dtype = draw.choice(DTYPES)
    batch = draw.randint(1, 5)
    queries = _lengths(draw, batch)
    keys = queries if draw.random() < 0.5 else _lengths(draw, batch)
    q_rows, k_rows = ([0, *accumulate(lengths)] for lengths in (queries, keys))
    kv_heads, groups = draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 4])
    dim, dim_v = draw.choice([(64, 64), (96, 96), (64, 128), (40, 40), (32, 64)])
    q = tensor(dtype, sum(queries), kv_heads * groups, dim)
    k, v = tensor(dtype, sum(keys), kv_heads, dim), tensor(dtype, sum(keys), kv_heads, dim_v)
    cu_q, cu_k = (torch.tensor(rows, dtype=torch.int32) for rows in (q_rows, k_rows))
    options = _attention_options(draw)

    def attend(q, k, v):
        return varlen_attention(q, k, v, cu_q, cu_k, **options)

    declared = dict.fromkeys(("q", "out", "do", "dq", "dq_sum"), q_rows)
    declared |= dict.fromkeys(("k", "v", "dk_sum", "dv_sum"), k_rows)
    declared |= dict.fromkeys(("lse", "delta"), (q_rows, 1))
    declared |= dict.fromkeys(("dk_parts", "dv_parts"), (k_rows, 1))
    name = f"packed {dtype} {queries} {keys} {kv_heads}x{groups} {dim},{dim_v} {options}"
    return SanitizedCase(name, lambda: _differentiate(attend, q, k, v), declared)


def _dense(draw, tensor):
    dtype, layout = draw.choice(DTYPES), draw.choice(["bshd", "bhsd"])
    batch, kv_heads, groups = draw.randint(1, 2), draw.choice([1, 2]), draw.choice([1, 2, 3])
    seqlen_q = draw.choice([1, 5, 63, 64, 65, 128, 130, draw.randint(2, 150)])
    seqlen_k = draw.choice([seqlen_q, 1, 70, 128, draw.randint(1, 150)])
    dim, dim_v = draw.choice([(64, 64), (96, 96), (48, 80), (32, 32)])

    def rows(length, heads, width):
        heads_first = layout == "bhsd"
        shape = (batch, heads, length, width) if heads_first else (batch, length, heads, width)
        return tensor(dtype, *shape)

    q = rows(seqlen_q, kv_heads * groups, dim)
    k, v = rows(seqlen_k, kv_heads, dim), rows(seqlen_k, kv_heads, dim_v)
    options = {**_attention_options(draw), "layout": layout}
    name = (
        f"dense {dtype} {batch} {seqlen_q},{seqlen_k} {kv_heads}x{groups} {dim},{dim_v} {options}"
    )
    return SanitizedCase(name, lambda: _differentiate(dense_attention, q, k, v, **options))


def _gemm(draw, tensor):
    dtype = draw.choice(DTYPES)
    m, n, k = (draw.choice([8, 64, 104, 136, 256, 8 * draw.randint(1, 40)]) for _ in range(3))
    flip_a, flip_b, accumulated = (draw.random() < 0.5 for _ in range(3))
    a = tensor(dtype, *((k, m) if flip_a else (m, k)))
    b = tensor(dtype, *((n, k) if flip_b else (k, n)))
    c = tensor(dtype, m, n) if accumulated else None
    options = {"transpose_a": flip_a, "transpose_b": flip_b, "accumulate": accumulated}
    return SanitizedCase(f"gemm {dtype} {m},{n},{k} {options}", lambda: gemm(a, b, c, **options))


def _rms_norm(draw, tensor):
    dtype = draw.choice(DTYPES)
    rows = draw.choice([1, 3, 8, 9, 33, draw.randint(1, 70)])
    cols = draw.choice([1, 8, 255, 256, 257, 600, draw.randint(1, 700)])
    x, w = tensor(dtype, rows, cols), tensor(dtype, cols)
    return SanitizedCase(f"rms_norm {dtype} {rows},{cols}", lambda: _differentiate(rms_norm, x, w))


_MAKERS = {"packed": _packed, "dense": _dense, "gemm": _gemm, "rms_norm": _rms_norm}


def _lengths(draw, count):
    near = [0, 1, 63, 64, 65, 127, 128, 129, draw.randint(2, 150)]
    return [draw.choice(near) for _ in range(count)]


def _attention_options(draw):
    causal = draw.random() < 0.6
    window = draw.choice([None, 1, 5, 63, 64, 200]) if causal else None
    backward = draw.choice(["atomic", "split", "grouped", "reordered"])
    return {"causal": causal, "window": window, "backward": backward}


def _differentiate(operator, *inputs, **options):
    inputs = [x.requires_grad_() for x in inputs]
    result = operator(*inputs, **options)
    out = result[0] if isinstance(result, tuple) else result
    return torch.autograd.grad(out.float().square().sum(), inputs)
