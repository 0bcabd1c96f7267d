"""Selective scan (Mamba): a diagonal linear recurrence whose step sizes come from the input.

With delta = softplus(dt + dt_bias):
h[t] = exp(-delta[t] * exp(A_log)) * h[t - 1] + delta[t] * u[t] * B[t]
y[t] = sum over the state of h[t] * C[t], plus D * u[t]
"""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def scan_kernel(state, dtype, chunk=16, block_d=32, threads=128):
    batch, length, dim = T.dynamic("batch, length, dim")

    @T.prim_func
    def selective_scan(
        U: T.Tensor((batch, length, dim), dtype),
        Dt: T.Tensor((batch, length, dim), dtype),
        DtBias: T.Tensor((dim,), "float32"),
        A_log: T.Tensor((dim, state), "float32"),
        B: T.Tensor((batch, length, state), dtype),
        C: T.Tensor((batch, length, state), dtype),
        D: T.Tensor((dim,), "float32"),
        Y: T.Tensor((batch, length, dim), dtype),
        Last: T.Tensor((batch, dim, state), "float32"),
    ):
        with T.Kernel(T.ceildiv(dim, block_d), batch, threads=threads) as (bd, b):
            u = T.alloc_shared([chunk, block_d], "float32")
            delta = T.alloc_shared([chunk, block_d], "float32")
            b_mat = T.alloc_shared([chunk, state], "float32")
            c_mat = T.alloc_shared([chunk, state], "float32")
            a = T.alloc_fragment([block_d, state], "float32")
            h = T.alloc_fragment([block_d, state], "float32")
            term = T.alloc_fragment([block_d, state], "float32")
            y = T.alloc_fragment([block_d], "float32")
            y_chunk = T.alloc_shared([chunk, block_d], "float32")

            for j, n in T.Parallel(block_d, state):
                d = bd * block_d + j
                a[j, n] = T.if_then_else(d < dim, -T.exp(A_log[d, n]), 0)
            T.clear(h)
            for c in T.serial(T.ceildiv(length, chunk)):
                for i, j in T.Parallel(chunk, block_d):
                    t = c * chunk + i
                    d = bd * block_d + j
                    u[i, j] = T.if_then_else(t < length and d < dim, U[b, t, d], 0)
                    delta[i, j] = T.if_then_else(t < length and d < dim, Dt[b, t, d] + DtBias[d], 0)
                for i, j in T.Parallel(chunk, block_d):
                    x = delta[i, j]
                    step = T.max(x, 0.0) + T.log1p(T.exp(-T.abs(x)))
                    # A step of 0 leaves the state as it is.
                    delta[i, j] = T.if_then_else(c * chunk + i < length, step, 0)
                for i, n in T.Parallel(chunk, state):
                    t = c * chunk + i
                    b_mat[i, n] = T.if_then_else(t < length, B[b, t, n], 0)
                    c_mat[i, n] = T.if_then_else(t < length, C[b, t, n], 0)
                for i in T.serial(chunk):
                    for j, n in T.Parallel(block_d, state):
                        h[j, n] = (
                            T.exp(delta[i, j] * a[j, n]) * h[j, n]
                            + delta[i, j] * u[i, j] * b_mat[i, n]
                        )
                    for j, n in T.Parallel(block_d, state):
                        term[j, n] = h[j, n] * c_mat[i, n]
                    T.reduce_sum(term, y, dim=1)
                    for j in T.Parallel(block_d):
                        y_chunk[i, j] = y[j]
                for i, j in T.Parallel(chunk, block_d):
                    t = c * chunk + i
                    d = bd * block_d + j
                    if t < length and d < dim:
                        Y[b, t, d] = y_chunk[i, j] + D[d] * u[i, j]
            for j, n in T.Parallel(block_d, state):
                if bd * block_d + j < dim:
                    Last[b, bd * block_d + j, n] = h[j, n]

    return selective_scan


def selective_scan(u, dt, dt_bias, A_log, B, C, D, *, out, last_state):
    """The caller brings `out` and `last_state`, as an inference engine does."""
    if u.numel() == 0:
        last_state.zero_()
        return
    kernel = scan_kernel(A_log.shape[1], str(u.dtype).split(".")[-1])
    kernel(u, dt, dt_bias, A_log, B, C, D, out, last_state)


def selective_scan_torch(u, dt, dt_bias, A_log, B, C, D):
    delta = torch.nn.functional.softplus(dt + dt_bias)
    h = u.new_zeros(u.shape[0], u.shape[2], A_log.shape[1], dtype=A_log.dtype)
    ys = []
    for t in range(u.shape[1]):
        step = delta[:, t, :, None]
        h = torch.exp(-step * A_log.exp()) * h + step * u[:, t, :, None] * B[:, t, None, :]
        ys.append((h * C[:, t, None, :]).sum(-1) + D * u[:, t])
    return torch.stack(ys, 1) if ys else u * 1, h
