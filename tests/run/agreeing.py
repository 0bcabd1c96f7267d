"""Variants of one product that agree, or nearly, for tests of agreements."""

import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import Unsupported


def product(a, b, *, transpose_a=False, transpose_b=False, variant="whole", chunk=None):
    a = a.T if transpose_a else a
    b = b.T if transpose_b else b
    if variant == "whole":
        return a @ b
    if variant == "raises":
        raise RuntimeError("no such kernel")
    if variant == "unsupported":
        raise Unsupported("not modelled")
    total = torch.zeros(len(a), b.shape[1], dtype=torch.float32)
    step = chunk or 4
    for start in range(0, a.shape[1], step):
        part = a[:, start : start + step].float() @ b[start : start + step].float()
        # The last piece of a sum whose length is no multiple of the step is forgotten.
        if variant == "tail" and start + step > a.shape[1]:
            part[-1] = 0
        total += part
    return total.to(a.dtype)


def by_alignment(a, b, *, transpose_a=False, transpose_b=False, variant="whole"):
    """Sums in another order where the first factor is aligned, as another kernel has them."""
    del transpose_a, transpose_b, variant
    return a.flip(1) @ b.flip(0) * 1.0000002 if a.data_ptr() % 16 == 0 else a @ b


def other(a, b, transpose_a, transpose_b):
    """The same by another way."""
    return product(a, b, transpose_a=transpose_a, transpose_b=transpose_b, variant="chunks")


def doubled(a, b):
    """Another thing."""
    return 2 * (a @ b)


@tilelang.jit(out_idx=[1])
def scaled(num_stages, factor=2.0):
    rows = T.dynamic("rows")

    @T.prim_func
    def kernel(X: T.Tensor((rows, 64), "float32"), Y: T.Tensor((rows, 64), "float32")):
        with T.Kernel(T.ceildiv(rows, 8), threads=64) as block:
            x = T.alloc_shared([8, 16], "float32")
            for step in T.Pipelined(4, num_stages=num_stages):
                T.copy(X[block * 8, step * 16], x)
                for i, j in T.Parallel(8, 16):
                    # A mistake that shows with a deeper pipeline alone.
                    x[i, j] = x[i, j] * (factor if num_stages < 3 or step > 0 else 1.0)
                T.copy(x, Y[block * 8, step * 16])

    return kernel


def twice(x):
    return 2 * x
