"""Small kernels with warp roles."""

from dataclasses import dataclass

import tilelang
import tilelang.language as T
import torch

BLOCK, STEP = 32, 32


@tilelang.jit(out_idx=[-1])
def tma_gemm(m, n, k, stages):
    """A producer warpgroup copies with TMA, a consumer warpgroup multiplies."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(n // BLOCK, m // BLOCK, threads=256) as (bx, by):
            As = T.alloc_shared((stages, BLOCK, STEP), "float16")
            Bs = T.alloc_shared((stages, STEP, BLOCK), "float16")
            acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([128] * stages)
            if T.get_thread_binding() >= 128:
                for i in T.serial(k // STEP):
                    s = i % stages
                    T.mbarrier_wait_parity(empty[s], (i // stages + 1) % 2)
                    T.tma_copy(
                        A[by * BLOCK : (by + 1) * BLOCK, i * STEP : (i + 1) * STEP],
                        As[s, :, :],
                        barrier=full[s],
                    )
                    T.tma_copy(
                        B[i * STEP : (i + 1) * STEP, bx * BLOCK : (bx + 1) * BLOCK],
                        Bs[s, :, :],
                        barrier=full[s],
                    )
                    T.mbarrier_arrive(full[s])
            else:
                T.clear(acc)
                for i in T.serial(k // STEP):
                    s = i % stages
                    T.mbarrier_wait_parity(full[s], (i // stages) % 2)
                    T.gemm(As[s, :, :], Bs[s, :, :], acc)
                    T.mbarrier_arrive(empty[s])
                T.copy(acc, C[by * BLOCK, bx * BLOCK])

    return main


@tilelang.jit(out_idx=[-1])
def wgmma_gemm(m, n, k, stages):
    """Two consumer warpgroups with asynchronous products; results leave through TMA stores."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(n // BLOCK, m // (2 * BLOCK), threads=384) as (bx, by):
            As = T.alloc_shared((stages, 2, BLOCK, STEP), "float16")
            Bs = T.alloc_shared((stages, STEP, BLOCK), "float16")
            Cs = T.alloc_shared((2, BLOCK, BLOCK), "float32")
            acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([256] * stages)
            tx = T.get_thread_binding()
            if tx >= 256:
                for i in T.serial(k // STEP):
                    s = i % stages
                    T.mbarrier_wait_parity(empty[s], (i // stages + 1) % 2)
                    for g in T.serial(2):
                        T.tma_copy(
                            A[
                                (by * 2 + g) * BLOCK : (by * 2 + g + 1) * BLOCK,
                                i * STEP : (i + 1) * STEP,
                            ],
                            As[s, g, :, :],
                            barrier=full[s],
                        )
                    T.tma_copy(
                        B[i * STEP : (i + 1) * STEP, bx * BLOCK : (bx + 1) * BLOCK],
                        Bs[s, :, :],
                        barrier=full[s],
                    )
                    T.mbarrier_arrive(full[s])
            elif tx >= 128:
                T.clear(acc)
                for i in T.serial(k // STEP):
                    s = i % stages
                    T.mbarrier_wait_parity(full[s], (i // stages) % 2)
                    T.wgmma_gemm(As[s, 1, :, :], Bs[s, :, :], acc)
                    T.wait_wgmma(0)
                    T.mbarrier_arrive(empty[s])
                T.copy(acc, Cs[1, :, :])
                T.tma_copy(
                    Cs[1, :, :],
                    C[(by * 2 + 1) * BLOCK : (by * 2 + 2) * BLOCK, bx * BLOCK : (bx + 1) * BLOCK],
                )
                T.tma_store_wait(0)
            else:
                T.clear(acc)
                for i in T.serial(k // STEP):
                    s = i % stages
                    T.mbarrier_wait_parity(full[s], (i // stages) % 2)
                    T.wgmma_gemm(As[s, 0, :, :], Bs[s, :, :], acc)
                    T.wait_wgmma(0)
                    T.mbarrier_arrive(empty[s])
                T.copy(acc, Cs[0, :, :])
                T.tma_copy(
                    Cs[0, :, :],
                    C[by * 2 * BLOCK : (by * 2 + 1) * BLOCK, bx * BLOCK : (bx + 1) * BLOCK],
                )
                T.tma_store_wait(0)

    return main


@tilelang.jit(out_idx=[-1])
def tcgen05_gemm(m, n, k, stages):
    """A warp copies, a warp issues products into tensor memory, a warpgroup writes results."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "bfloat16"),
        B: T.Tensor((k, n), "bfloat16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(2, threads=256) as bx:
            As = T.alloc_shared((stages, BLOCK, STEP), "bfloat16")
            Bs = T.alloc_shared((stages, STEP, BLOCK), "bfloat16")
            D = T.alloc_tmem((2, BLOCK, BLOCK), "float32")
            acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
            full = T.alloc_barrier([32] * stages)
            empty = T.alloc_barrier([1] * stages)
            done = T.alloc_barrier([1, 1])
            free = T.alloc_barrier([128, 128])
            tx = T.get_thread_binding()
            if tx < 32:
                for t in T.serial(m // BLOCK):
                    for i in T.serial(k // STEP):
                        turn = t * (k // STEP) + i
                        s = turn % stages
                        T.mbarrier_wait_parity(empty[s], (turn // stages + 1) % 2)
                        T.tma_copy(
                            A[t * BLOCK : (t + 1) * BLOCK, i * STEP : (i + 1) * STEP],
                            As[s, :, :],
                            barrier=full[s],
                        )
                        T.tma_copy(
                            B[i * STEP : (i + 1) * STEP, bx * BLOCK : (bx + 1) * BLOCK],
                            Bs[s, :, :],
                            barrier=full[s],
                        )
                        T.mbarrier_arrive(full[s])
            elif tx < 64:
                for t in T.serial(m // BLOCK):
                    T.mbarrier_wait_parity(free[t % 2], (t // 2 + 1) % 2)
                    for i in T.serial(k // STEP):
                        turn = t * (k // STEP) + i
                        s = turn % stages
                        T.mbarrier_wait_parity(full[s], (turn // stages) % 2)
                        T.tcgen05_gemm(
                            As[s, :, :],
                            Bs[s, :, :],
                            D[t % 2, :, :],
                            mbar=empty[s],
                            clear_accum=i == 0,
                        )
                    T.tcgen05_mma_arrive(done[t % 2])
            elif tx >= 128:
                for t in T.serial(m // BLOCK):
                    T.mbarrier_wait_parity(done[t % 2], (t // 2) % 2)
                    T.copy(D[t % 2, :, :], acc)
                    T.mbarrier_arrive(free[t % 2])
                    T.copy(acc, C[t * BLOCK, bx * BLOCK])
            # The first warp frees tensor memory at its end.
            T.sync_threads()

    return main


@tilelang.jit(out_idx=[-1])
def cp_async_gemm(m, n, k, stages):
    """One role that copies ahead with cp.async and waits for groups."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(n // BLOCK, m // BLOCK, threads=128) as (bx, by):
            As = T.alloc_shared((stages, BLOCK, STEP), "float16")
            Bs = T.alloc_shared((stages, STEP, BLOCK), "float16")
            acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
            T.clear(acc)
            T.async_copy(A[by * BLOCK : (by + 1) * BLOCK, 0:STEP], As[0, :, :])
            T.async_copy(B[0:STEP, bx * BLOCK : (bx + 1) * BLOCK], Bs[0, :, :])
            for i in T.serial(k // STEP - 1):
                s = (i + 1) % stages
                T.async_copy(
                    A[by * BLOCK : (by + 1) * BLOCK, (i + 1) * STEP : (i + 2) * STEP], As[s, :, :]
                )
                T.async_copy(
                    B[(i + 1) * STEP : (i + 2) * STEP, bx * BLOCK : (bx + 1) * BLOCK], Bs[s, :, :]
                )
                T.ptx_wait_group(2)
                T.gemm(As[i % stages, :, :], Bs[i % stages, :, :], acc)
            T.ptx_wait_group(0)
            T.gemm(As[(k // STEP - 1) % stages, :, :], Bs[(k // STEP - 1) % stages, :, :], acc)
            T.copy(acc, C[by * BLOCK, bx * BLOCK])

    return main


@tilelang.jit(out_idx=[-1])
def handed_over(rows):
    """Three roles in a chain: square, add a neighbour's element, write; with spare threads."""

    @T.prim_func
    def main(X: T.Tensor((rows, 64), "float32"), Y: T.Tensor((rows, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, 64), "float32")
            b = T.alloc_shared((2, 64), "float32")
            a_full = T.alloc_barrier([32, 32])
            a_free = T.alloc_barrier([32, 32])
            b_full = T.alloc_barrier([32, 32])
            b_free = T.alloc_barrier([32, 32])
            tx = T.get_thread_binding()
            if tx < 32:
                for r in T.serial(rows):
                    T.mbarrier_wait_parity(a_free[r % 2], (r // 2 + 1) % 2)
                    for i in T.Parallel(64):
                        a[r % 2, i] = X[r, i] * X[r, i]
                    T.mbarrier_arrive(a_full[r % 2])
            elif tx < 64:
                for r in T.serial(rows):
                    T.mbarrier_wait_parity(a_full[r % 2], (r // 2) % 2)
                    T.mbarrier_wait_parity(b_free[r % 2], (r // 2 + 1) % 2)
                    for i in T.Parallel(64):
                        b[r % 2, i] = a[r % 2, i] + a[r % 2, 63 - i]
                    T.mbarrier_arrive(a_free[r % 2])
                    T.mbarrier_arrive(b_full[r % 2])
            elif tx < 96:
                for r in T.serial(rows):
                    T.mbarrier_wait_parity(b_full[r % 2], (r // 2) % 2)
                    for i in T.Parallel(64):
                        Y[r, i] = b[r % 2, i]
                    T.mbarrier_arrive(b_free[r % 2])

    return main


@dataclass(frozen=True)
class Example:
    """A kernel, its inputs, and what it must compute."""

    factory: object
    arguments: tuple
    arch: str = "sm_90a"

    def inputs(self):
        if self.factory is handed_over:
            return (torch.randn(self.arguments[0], 64),)
        m, n, k, _ = self.arguments
        dtype = torch.bfloat16 if self.factory is tcgen05_gemm else torch.float16
        return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)

    def expected(self, inputs):
        if self.factory is handed_over:
            square = inputs[0] ** 2
            return square + square.flip(1)
        return inputs[0].float() @ inputs[1].float()

    def traced(self):
        from tilelang import tvm

        with tvm.target.Target({"kind": "cuda", "arch": self.arch}):
            return self.factory.get_tir(*self.arguments)


EXAMPLES = {
    "tma": Example(tma_gemm, (32, 64, 160, 2)),
    "tma three stages": Example(tma_gemm, (32, 32, 224, 3)),
    "tma one iteration": Example(tma_gemm, (32, 32, 32, 2)),
    "wgmma": Example(wgmma_gemm, (64, 32, 160, 2)),
    "tcgen05": Example(tcgen05_gemm, (128, 64, 96, 2), "sm_100a"),
    "cp.async": Example(cp_async_gemm, (32, 32, 160, 2)),
    "chain": Example(handed_over, (7,)),
}

__all__ = ["EXAMPLES", "Example"]
