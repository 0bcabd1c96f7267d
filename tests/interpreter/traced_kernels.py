"""Small attention kernels to explain, each with one fault or none."""

import tilelang
import tilelang.language as T

ROWS, KEYS, WIDTH = 16, 16, 16


@tilelang.jit(out_idx=[-1])
def attention(length, fault=""):
    """Causal attention of one head [length, WIDTH]; `fault` names what is wrong with it.

    - "mask": a query sees the key after its own too;
    - "scale": the third tile of keys is scaled twice;
    - "weights": the weights are kept in bfloat16 before they are summed;
    - "last": the last tile of keys is left out.
    """
    scale = WIDTH**-0.5 * 1.4426950408889634
    shift = 1 if fault == "mask" else 0
    less = 1 if fault == "last" else 0
    kept = "bfloat16" if fault == "weights" else "float32"

    @T.prim_func
    def causal(
        Q: T.Tensor((length, WIDTH), "float16"),
        K: T.Tensor((length, WIDTH), "float16"),
        V: T.Tensor((length, WIDTH), "float16"),
        Out: T.Tensor((length, WIDTH), "float32"),
    ):
        with T.Kernel(T.ceildiv(length, ROWS), threads=32) as tile:
            q = T.alloc_shared((ROWS, WIDTH), "float16")
            k = T.alloc_shared((KEYS, WIDTH), "float16")
            v = T.alloc_shared((KEYS, WIDTH), "float16")
            s = T.alloc_fragment((ROWS, KEYS), "float32")
            p = T.alloc_fragment((ROWS, KEYS), kept)
            acc = T.alloc_fragment((ROWS, WIDTH), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            added = T.alloc_fragment((ROWS,), "float32")
            T.copy(Q[tile * ROWS, 0], q)
            T.clear(acc)
            T.clear(total)
            for step in T.serial(tile + 1 - less):
                T.copy(K[step * KEYS, 0], k)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                for i, j in T.Parallel(ROWS, KEYS):
                    s[i, j] = T.if_then_else(
                        step * KEYS + j <= tile * ROWS + i + shift, s[i, j], -T.infinity("float32")
                    )
                if fault == "scale":  # noqa: SIM102 - known when traced, unlike the next
                    if step == 2:
                        for i, j in T.Parallel(ROWS, KEYS):
                            s[i, j] = s[i, j] * scale
                for i, j in T.Parallel(ROWS, KEYS):
                    p[i, j] = T.exp2(s[i, j] * scale)
                T.reduce_sum(p, added, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = total[i] + added[i]
                T.copy(V[step * KEYS, 0], v)
                T.gemm(p, v, acc)
            for i, d in T.Parallel(ROWS, WIDTH):
                Out[tile * ROWS + i, d] = acc[i, d] / total[i]

    return causal


def parts(rows, blocks):
    """A kernel of which each block adds its share of a column sum."""

    @T.prim_func
    def shares(X: T.Tensor((blocks, rows), "float32"), Y: T.Tensor((rows,), "float32")):
        with T.Kernel(blocks, threads=32) as bx:
            for i in T.Parallel(rows):
                T.atomic_add(Y[i], X[bx, i])

    return shares
