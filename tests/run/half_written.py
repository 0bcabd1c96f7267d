"""A kernel that writes the first half of its output."""

import tilelang
import tilelang.language as T


@tilelang.jit
def half_written():
    rows = T.dynamic("rows")

    @T.prim_func
    def kernel(X: T.Tensor((rows,), "float32"), Y: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(rows // 2):
                Y[i] = X[i]

    return kernel
