"""Small kernels for the backend `compile`: one that is right, and one for each thing to find."""

import tilelang
import tilelang.language as T
import torch
import torch.distributed as dist

from tlmatrix_kernels.distributed import signals

UNSAFE = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}


@tilelang.jit
def double():
    n = T.dynamic("n")

    @T.prim_func
    def double_elements(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 128), threads=128) as block:
            for i in T.Parallel(128):
                Y[block * 128 + i] = X[block * 128 + i] * 2

    return double_elements


@tilelang.jit
def greedy():
    """A block asks for 240 KiB of shared memory, which lowers and assembles."""
    n = T.dynamic("n")

    @T.prim_func
    def greedy_elements(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((61440,), "float32")
            for i in T.Parallel(128):
                held[i * 480] = X[i]
            for i in T.Parallel(128):
                Y[i] = held[(127 - i) * 480] * 2

    return greedy_elements


@tilelang.jit
def not_lowered():
    """Asynchronous copies in a loop whose length only the kernel knows: sm_80 has no such wait."""
    n = T.dynamic("n")

    @T.prim_func
    def staged_sum(X: T.Tensor((n, 64), "float16"), Y: T.Tensor((n, 64), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=128) as block:
            tile = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for step in T.Pipelined(block + 1, num_stages=3):
                T.copy(X[step * 64, 0], tile)
                T.gemm(tile, tile, total, transpose_B=True)
            T.copy(total, Y[block * 64, 0])

    return staged_sum


@tilelang.jit
def not_assembled():
    """Calls a function that the CUDA compiler does not know."""
    n = T.dynamic("n")

    @T.prim_func
    def calls_nobody(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = T.call_extern("float32", "function_of_nobody", X[i])

    return calls_nobody


@tilelang.jit(out_idx=[-1])
def allocating():
    n = T.dynamic("n")

    @T.prim_func
    def twice_as_long(X: T.Tensor((n,), "float32"), Y: T.Tensor((n * 2,), "float32")):
        with T.Kernel(T.ceildiv(n * 2, 128), threads=128) as block:
            for i in T.Parallel(128):
                Y[block * 128 + i] = 0.0

    return twice_as_long


def reference(x):
    return x * 2


def doubled(x, kernel="double"):
    """The entry of the tests: a kernel by its name."""
    y = x.new_empty(x.shape)
    KERNELS[kernel]()(x, y)
    return y


KERNELS = {"double": double, "greedy": greedy, "not_assembled": not_assembled}


@tilelang.jit
def laid_out():
    """A global buffer with an annotated layout, and atomics of two elements into it."""

    @T.prim_func
    def laid_out_sum(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            T.annotate_layout({Y: T.Layout((16, 16), lambda i, j: [j // 2, i, j % 2])})
            tile = T.alloc_shared((16, 16), "float32")
            T.copy(X, tile)
            T.atomic_add(Y, tile)

    return laid_out_sum


@tilelang.jit
def waiting():
    """Doubles once every rank has raised its flag: run before them, it would wait for ever."""
    n, world = T.dynamic("n, world")

    @T.prim_func
    def double_when_told(
        X: T.Tensor((n,), "float32"),
        flags: T.Tensor((world,), "int32"),
        Y: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 128), threads=128) as block:
            T.import_source(signals.source(128))
            for rank in T.serial(world):
                signals.wait(flags, rank, 1)
            for i in T.Parallel(128):
                Y[block * 128 + i] = X[block * 128 + i] * 2

    return double_when_told


def doubled_on_ranks(x, rank, world, kernel="double"):
    """All ranks launch one kernel for their part of x, and the last one another, by its name."""
    y = torch.empty_like(x)
    double()(x, y)
    dist.barrier()
    if rank == world - 1:
        if kernel == "missing":
            raise ValueError("no kernel for the last rank")
        if kernel == "alone":
            dist.barrier()
        elif kernel == "waiting":
            waiting()(x, torch.zeros(world, dtype=torch.int32), y)
        else:
            KERNELS[kernel]()(x, y)
    return y
