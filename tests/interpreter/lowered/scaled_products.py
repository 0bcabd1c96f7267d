"""Products of tiles that come by TMA, with numbers of rows by `cp.async` of the producer."""

import tilelang.language as T

from jit_kernel import jit_kernel


@jit_kernel(A="f16[256, 64]", B="f16[64, 64]", S="f32[256]", C="f32[256, 64]", threads=128)
def scaled_products(A, B, S, C, scaled):
    """`C = S + A @ B` if scaled "before", else `C = S * (A @ B)`."""
    a = T.alloc_shared((64, 64), "float16")
    b = T.alloc_shared((64, 64), "float16")
    scale = T.alloc_shared((64,), "float32")
    c = T.alloc_fragment((64, 64), "float32")
    T.copy(B, b)
    for k in T.Pipelined(4, num_stages=2):
        T.copy(A[k * 64, 0], a)
        for i in T.Parallel(64):
            scale[i] = S[k * 64 + i]
        if scaled == "before":
            for i, j in T.Parallel(64, 64):
                c[i, j] = scale[i]
            T.gemm(a, b, c)
            T.copy(c, C[k * 64, 0])
        else:
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                C[k * 64 + i, j] = c[i, j] * scale[i]
