"""The project's own kernels give no report, whatever the shape: generated cases, all sanitizers."""

import random
from itertools import accumulate

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import dense_attention, varlen_attention
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.norm import rms_norm

DTYPES = (torch.float16, torch.bfloat16)


def reports_of(call, **options):
    with interpret(sanitize=True, **options) as run:
        call()
    return run.reports


def differentiate(operator, *inputs, **options):
    inputs = [x.requires_grad_() for x in inputs]
    result = operator(*inputs, **options)
    out = result[0] if isinstance(result, tuple) else result
    return torch.autograd.grad(out.float().square().sum(), inputs)


def attention_options(draw):
    causal = draw.random() < 0.6
    window = draw.choice([None, 1, 5, 63, 64, 200]) if causal else None
    return {"causal": causal, "window": window, "backward": draw.choice(["atomic", "split"])}


@pytest.mark.parametrize("seed", range(24))
def test_packed_attention_gives_no_report(seed):
    draw = random.Random(seed)
    dtype = draw.choice(DTYPES)

    def lengths(count):
        near = [0, 1, 63, 64, 65, 128, draw.randint(2, 150)]
        return [draw.choice(near) for _ in range(count)]

    batch = draw.randint(1, 4)
    queries = lengths(batch)
    keys = queries if draw.random() < 0.5 else lengths(batch)
    q_rows, k_rows = ([0, *accumulate(n)] for n in (queries, keys))
    kv_heads, groups = draw.choice([1, 2]), draw.choice([1, 2, 3])
    dim, dim_v = draw.choice([(64, 64), (96, 96), (64, 128), (40, 40)])
    q = torch.randn(sum(queries), kv_heads * groups, dim).to(dtype)
    k = torch.randn(sum(keys), kv_heads, dim).to(dtype)
    v = torch.randn(sum(keys), kv_heads, dim_v).to(dtype)
    cu_q, cu_k = (torch.tensor(rows, dtype=torch.int32) for rows in (q_rows, k_rows))
    options = attention_options(draw)

    def call():
        def attend(q, k, v):
            return varlen_attention(q, k, v, cu_q, cu_k, **options)

        differentiate(attend, q, k, v)

    declared = dict.fromkeys(("q", "out", "do", "dq", "dq_sum"), q_rows)
    declared |= dict.fromkeys(("k", "v", "dk_sum", "dv_sum"), k_rows)
    declared |= {"lse": (q_rows, 1), "delta": (q_rows, 1)}
    declared |= {"dk_parts": (k_rows, 1), "dv_parts": (k_rows, 1)}
    assert reports_of(call, sequences=declared) == []


@pytest.mark.parametrize("seed", range(24))
def test_dense_attention_gives_no_report(seed):
    draw = random.Random(seed)
    dtype, layout = draw.choice(DTYPES), draw.choice(["bshd", "bhsd"])
    batch, kv_heads, groups = draw.randint(1, 2), draw.choice([1, 2]), draw.choice([1, 3])
    seqlen_q = draw.choice([1, 5, 64, 65, 130])
    seqlen_k = draw.choice([seqlen_q, 1, 70, 128])
    dim, dim_v = draw.choice([(64, 64), (96, 96), (48, 80)])

    def tensor(rows, heads, width):
        shape = (batch, rows, heads, width) if layout == "bshd" else (batch, heads, rows, width)
        return torch.randn(shape).to(dtype)

    q = tensor(seqlen_q, kv_heads * groups, dim)
    k, v = tensor(seqlen_k, kv_heads, dim), tensor(seqlen_k, kv_heads, dim_v)
    options = attention_options(draw)

    def call():
        differentiate(dense_attention, q, k, v, layout=layout, **options)

    assert reports_of(call) == []


@pytest.mark.parametrize("seed", range(24))
def test_gemm_gives_no_report(seed):
    draw = random.Random(seed)
    dtype = draw.choice(DTYPES)
    m, n, k = (draw.choice([8, 64, 104, 136, 256]) for _ in range(3))
    flip_a, flip_b, accumulate_c = (draw.random() < 0.5 for _ in range(3))
    a = torch.randn((k, m) if flip_a else (m, k)).to(dtype)
    b = torch.randn((n, k) if flip_b else (k, n)).to(dtype)
    c = torch.randn(m, n).to(dtype) if accumulate_c else None

    def call():
        gemm(a, b, c, transpose_a=flip_a, transpose_b=flip_b, accumulate=accumulate_c)

    assert reports_of(call) == []


@pytest.mark.parametrize("seed", range(24))
def test_rms_norm_gives_no_report(seed):
    draw = random.Random(seed)
    dtype = draw.choice(DTYPES)
    rows, cols = draw.choice([1, 3, 8, 9, 33]), draw.choice([1, 8, 255, 256, 257, 600])
    x, w = torch.randn(rows, cols).to(dtype), torch.randn(cols).to(dtype)
    assert reports_of(lambda: differentiate(rms_norm, x, w)) == []
