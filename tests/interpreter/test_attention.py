"""Flash attention, forward and backward, against float64: the patterns kernels are made of."""

import itertools
import math

import pytest
import tilelang
import tilelang.language as T
import torch

pytestmark = pytest.mark.usefixtures("interpreted")
LOG2E = 1.4426950408889634


@tilelang.jit(out_idx=[3])
def dense_forward(heads, dim, causal, dtype, block_m=64, block_n=64):
    batch, seq_q, seq_k = T.dynamic("batch"), T.dynamic("seq_q"), T.dynamic("seq_k")
    scale = dim**-0.5 * LOG2E

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, heads, seq_k, dim), dtype),
        V: T.Tensor((batch, heads, seq_k, dim), dtype),
        Out: T.Tensor((batch, heads, seq_q, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_m), heads, batch, threads=128) as (bx, by, bz):
            q = T.alloc_shared((block_m, dim), dtype)
            k = T.alloc_shared((block_n, dim), dtype)
            v = T.alloc_shared((block_n, dim), dtype)
            s = T.alloc_fragment((block_m, block_n), "float32")
            p = T.alloc_fragment((block_m, block_n), dtype)
            acc = T.alloc_fragment((block_m, dim), "float32")
            m = T.alloc_fragment((block_m,), "float32")
            m_old = T.alloc_fragment((block_m,), "float32")
            alpha = T.alloc_fragment((block_m,), "float32")
            row = T.alloc_fragment((block_m,), "float32")
            norm = T.alloc_fragment((block_m,), "float32")
            T.copy(Q[bz, by, bx * block_m : (bx + 1) * block_m, :], q)
            T.clear(acc)
            T.clear(norm)
            T.fill(m, -T.infinity("float32"))
            past = seq_k - seq_q
            stop = T.ceildiv(seq_k, block_n)
            if causal:
                stop = T.min(stop, T.ceildiv((bx + 1) * block_m + past, block_n))
            for kb in T.Pipelined(stop, num_stages=2):
                T.copy(K[bz, by, kb * block_n : (kb + 1) * block_n, :], k)
                if causal:
                    for i, j in T.Parallel(block_m, block_n):
                        s[i, j] = T.if_then_else(
                            bx * block_m + i + past >= kb * block_n + j, 0, -T.infinity("float32")
                        )
                else:
                    for i, j in T.Parallel(block_m, block_n):
                        s[i, j] = T.if_then_else(
                            kb * block_n + j < seq_k, 0, -T.infinity("float32")
                        )
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(m, m_old)
                T.reduce_max(s, m, dim=1, clear=False)
                for i in T.Parallel(block_m):
                    alpha[i] = T.exp2(m_old[i] * scale - m[i] * scale)
                for i, j in T.Parallel(block_m, block_n):
                    s[i, j] = T.exp2(s[i, j] * scale - m[i] * scale)
                T.reduce_sum(s, row, dim=1)
                for i in T.Parallel(block_m):
                    norm[i] = norm[i] * alpha[i] + row[i]
                for i, j in T.Parallel(block_m, dim):
                    acc[i, j] *= alpha[i]
                T.copy(s, p)
                T.copy(V[bz, by, kb * block_n : (kb + 1) * block_n, :], v)
                T.gemm(p, v, acc)
            for i, j in T.Parallel(block_m, dim):
                acc[i, j] /= norm[i]
            T.copy(acc, Out[bz, by, bx * block_m : (bx + 1) * block_m, :])

    return main


def attention(q, k, v, causal):
    """Float64 attention of [..., seq, dim], bottom-right aligned, rows without keys zero."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        rows = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
        scores = scores.masked_fill(torch.arange(k.shape[-2]) > rows, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ v


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 64), (65, 130), (100, 200), (200, 200)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dense_forward(seq_q, seq_k, causal, dtype):
    torch_dtype = getattr(torch, dtype)
    q = torch.randn(2, 3, seq_q, 64).to(torch_dtype)
    k, v = (torch.randn(2, 3, seq_k, 64).to(torch_dtype) for _ in range(2))
    got = dense_forward(3, 64, causal, dtype)(q, k, v)
    tolerance = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 2e-6}[dtype]
    assert (got.double() - attention(q, k, v, causal)).abs().max() < tolerance


@tilelang.jit(out_idx=[6, 7])
def packed_forward(heads, groups, dim, block=64):
    batch, total_q, total_k = T.dynamic("batch"), T.dynamic("total_q"), T.dynamic("total_k")
    scale = dim**-0.5 * LOG2E
    kv_heads = heads // groups

    @T.prim_func
    def main(
        Q: T.Tensor((total_q, heads, dim), "float16"),
        K: T.Tensor((total_k, kv_heads, dim), "float16"),
        V: T.Tensor((total_k, kv_heads, dim), "float16"),
        CQ: T.Tensor((batch + 1,), "int32"),
        CK: T.Tensor((batch + 1,), "int32"),
        longest: T.int32,
        Out: T.Tensor((total_q, heads, dim), "float16"),
        L: T.Tensor((heads, total_q), "float32"),
    ):
        with T.Kernel(T.ceildiv(longest, block), heads, batch, threads=128) as (bx, by, bz):
            q = T.alloc_shared((block, dim), "float16")
            k = T.alloc_shared((block, dim), "float16")
            v = T.alloc_shared((block, dim), "float16")
            s = T.alloc_fragment((block, block), "float32")
            p = T.alloc_fragment((block, block), "float16")
            acc = T.alloc_fragment((block, dim), "float32")
            m = T.alloc_fragment((block,), "float32")
            m_old = T.alloc_fragment((block,), "float32")
            row = T.alloc_fragment((block,), "float32")
            norm = T.alloc_fragment((block,), "float32")
            q0 = CQ[bz]
            k0 = CK[bz]
            len_q = CQ[bz + 1] - q0
            len_k = CK[bz + 1] - k0
            if bx * block < len_q:
                T.copy(Q[q0 + bx * block : q0 + (bx + 1) * block, by, :], q)
                T.clear(acc)
                T.clear(norm)
                T.fill(m, -1e30)
                stop = T.min(
                    T.ceildiv(len_k, block),
                    T.max(0, T.ceildiv((bx + 1) * block + len_k - len_q, block)),
                )
                for kb in T.Pipelined(stop, num_stages=1):
                    T.copy(K[k0 + kb * block : k0 + (kb + 1) * block, by // groups, :], k)
                    T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(block, block):
                        s[i, j] = T.if_then_else(
                            T.And(
                                bx * block + i + len_k - len_q >= kb * block + j,
                                kb * block + j < len_k,
                            ),
                            s[i, j] * scale,
                            -T.infinity("float32"),
                        )
                    T.copy(m, m_old)
                    T.reduce_max(s, m, dim=1, clear=False)
                    for i, j in T.Parallel(block, block):
                        s[i, j] = T.exp2(s[i, j] - m[i])
                    T.reduce_sum(s, row, dim=1)
                    for i in T.Parallel(block):
                        norm[i] = norm[i] * T.exp2(m_old[i] - m[i]) + row[i]
                    for i, j in T.Parallel(block, dim):
                        acc[i, j] = acc[i, j] * T.exp2(m_old[i] - m[i])
                    T.copy(s, p)
                    T.copy(V[k0 + kb * block : k0 + (kb + 1) * block, by // groups, :], v)
                    T.gemm(p, v, acc)
                for i, j in T.Parallel(block, dim):
                    if bx * block + i < len_q:
                        Out[q0 + bx * block + i, by, j] = T.if_then_else(
                            norm[i] > 0, acc[i, j] / norm[i], 0.0
                        )
                for i in T.Parallel(block):
                    if bx * block + i < len_q:
                        L[by, q0 + bx * block + i] = T.if_then_else(
                            norm[i] > 0,
                            (T.log2(norm[i]) + m[i]) * 0.6931471805599453,
                            -T.infinity("float32"),
                        )

    return main


@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"),
    [
        ([17, 64, 1], [17, 64, 1]),
        ([130, 0, 65], [200, 7, 64]),
        ([0, 0, 5], [3, 0, 0]),
        ([100], [40]),
    ],
)
def test_packed_forward(lengths_q, lengths_k):
    heads, groups, dim = 4, 2, 64
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    q = torch.randn(total_q, heads, dim).half()
    k, v = (torch.randn(total_k, heads // groups, dim).half() for _ in range(2))
    cu_q, cu_k = (
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    )
    out, lse = packed_forward(heads, groups, dim)(q, k, v, cu_q, cu_k, max(lengths_q))
    assert out.shape == q.shape
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        keys = k[c:d].repeat_interleave(groups, 1).transpose(0, 1)
        values = v[c:d].repeat_interleave(groups, 1).transpose(0, 1)
        expected = attention(q[a:b].transpose(0, 1), keys, values, causal=True).transpose(0, 1)
        assert (out[a:b].double() - expected).abs().max() < 3e-3 if b > a else True
        visible = torch.arange(b - a) + (d - c) - (b - a) >= 0
        assert lse[:, a:b].isneginf().logical_not().eq(visible).all()


@tilelang.jit
def dense_backward(heads, groups, dim, causal, block_m=64, block_n=32):
    batch, seq = T.dynamic("batch"), T.dynamic("seq")
    scale = dim**-0.5
    kv_heads = heads // groups
    q_shape, k_shape = (batch, seq, heads, dim), (batch, seq, kv_heads, dim)

    @T.prim_func
    def main(
        Q: T.Tensor(q_shape, "float16"),
        K: T.Tensor(k_shape, "float16"),
        V: T.Tensor(k_shape, "float16"),
        dO: T.Tensor(q_shape, "float16"),
        lse: T.Tensor((batch, heads, seq), "float32"),
        delta: T.Tensor((batch, heads, seq), "float32"),
        dQ: T.Tensor(q_shape, "float32"),
        dK: T.Tensor(k_shape, "float32"),
        dV: T.Tensor(k_shape, "float32"),
    ):
        with T.Kernel(heads, T.ceildiv(seq, block_m), batch, threads=128) as (bx, by, bz):
            k = T.alloc_shared((block_m, dim), "float16")
            v = T.alloc_shared((block_m, dim), "float16")
            q = T.alloc_shared((block_n, dim), "float16")
            do = T.alloc_shared((block_n, dim), "float16")
            row_lse = T.alloc_shared((block_n,), "float32")
            row_delta = T.alloc_shared((block_n,), "float32")
            pT = T.alloc_fragment((block_m, block_n), "float32")
            dsT = T.alloc_fragment((block_m, block_n), "float32")
            pT_half = T.alloc_fragment((block_m, block_n), "float16")
            dsT_half = T.alloc_fragment((block_m, block_n), "float16")
            dsT_shared = T.alloc_shared((block_m, block_n), "float16")
            dk = T.alloc_fragment((block_m, dim), "float32")
            dv = T.alloc_fragment((block_m, dim), "float32")
            dq = T.alloc_fragment((block_n, dim), "float32")
            tile = T.alloc_shared((block_m, dim), "float32")
            T.copy(K[bz, by * block_m : (by + 1) * block_m, bx // groups, :], k)
            T.copy(V[bz, by * block_m : (by + 1) * block_m, bx // groups, :], v)
            T.clear(dk)
            T.clear(dv)
            start = T.floordiv(by * block_m, block_n) if causal else 0
            for kb in T.Pipelined(start, T.ceildiv(seq, block_n), num_stages=1):
                T.copy(Q[bz, kb * block_n : (kb + 1) * block_n, bx, :], q)
                T.copy(dO[bz, kb * block_n : (kb + 1) * block_n, bx, :], do)
                T.copy(lse[bz, bx, kb * block_n : (kb + 1) * block_n], row_lse)
                T.copy(delta[bz, bx, kb * block_n : (kb + 1) * block_n], row_delta)
                T.clear(pT)
                T.gemm(k, q, pT, transpose_B=True)
                for i, j in T.Parallel(block_m, block_n):
                    pT[i, j] = T.exp2((pT[i, j] * scale - row_lse[j]) * LOG2E)
                for i, j in T.Parallel(block_m, block_n):
                    if causal:
                        pT[i, j] = T.if_then_else(
                            by * block_m + i <= kb * block_n + j, pT[i, j], 0.0
                        )
                T.gemm(v, do, dsT, transpose_B=True, clear_accum=True)
                T.copy(pT, pT_half)
                T.gemm(pT_half, do, dv)
                for i, j in T.Parallel(block_m, block_n):
                    dsT_half[i, j] = pT[i, j] * (dsT[i, j] - row_delta[j]) * scale
                T.gemm(dsT_half, q, dk)
                T.copy(dsT_half, dsT_shared)
                T.clear(dq)
                T.gemm(dsT_shared, k, dq, transpose_A=True)
                for i, j in T.Parallel(block_n, dim):
                    T.atomic_add(dQ[bz, kb * block_n + i, bx, j], dq[i, j])
            T.copy(dv, tile)
            T.atomic_add(dV[bz, by * block_m : (by + 1) * block_m, bx // groups, :], tile)
            T.copy(dk, tile)
            T.atomic_add(dK[bz, by * block_m : (by + 1) * block_m, bx // groups, :], tile)

    return main


@pytest.mark.parametrize("seq", [33, 64, 150])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_backward_with_atomics(seq, causal):
    heads, groups, dim = 4, 2, 64
    q, do = (torch.randn(1, seq, heads, dim).half() for _ in range(2))
    k, v = (torch.randn(1, seq, heads // groups, dim).half() for _ in range(2))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]

    def heads_first(x, repeat):
        return x.transpose(1, 2).repeat_interleave(repeat, 1)

    out = attention(
        heads_first(leaves[0], 1),
        heads_first(leaves[1], groups),
        heads_first(leaves[2], groups),
        causal,
    ).transpose(1, 2)
    expected = torch.autograd.grad(out, leaves, do.double())
    scores = heads_first(leaves[0], 1) @ heads_first(leaves[1], groups).transpose(-1, -2) / dim**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), float("-inf"))
    lse = scores.logsumexp(-1).detach().float()
    delta = (out.detach() * do.double()).sum(-1).transpose(1, 2).contiguous().float()
    grads = [torch.zeros(x.shape) for x in (q, k, v)]
    dense_backward(heads, groups, dim, causal)(q, k, v, do, lse, delta, *grads)
    for got, want in zip(grads, expected, strict=True):
        assert (got.double() - want).abs().max() < 1e-2 * want.abs().max().clamp(min=1)
