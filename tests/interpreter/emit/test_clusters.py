"""Clusters of blocks: ranks, barriers of all threads, arrivals at another block's mbarrier."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import DeadlockError, interpret, scheduled

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_block_knows_its_rank_in_a_cluster():
    @jit_kernel
    def kernel(Y: T.Tensor((8, 6), "int32")):
        with T.ClusterKernel(8, 6, threads=32, cluster_dims=(4, 2, 1)) as (bx, by):
            T.cluster_sync()
            if T.get_thread_binding() == 0:
                Y[bx, by] = T.block_rank_in_cluster()

    y = torch.empty(8, 6, dtype=torch.int32)
    kernel()(y)
    assert y.tolist() == [[x % 4 + 4 * (z % 2) for z in range(6)] for x in range(8)]


def test_blocks_of_a_cluster_exchange_what_they_wrote_before_a_barrier():
    @jit_kernel
    def kernel(X: T.Tensor((4, 64), "int32"), Y: T.Tensor((4, 64), "int32")):
        with T.ClusterKernel(4, threads=64, cluster_dims=2) as bx:
            tx = T.get_thread_binding()
            X[bx, tx] = bx * 100 + tx
            T.cluster_arrive()
            T.cluster_wait()
            Y[bx, tx] = X[bx + 1 - 2 * T.block_rank_in_cluster(), tx]

    x, y = torch.zeros(4, 64, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int32)
    kernel()(x, y)
    assert torch.equal(y, x[[1, 0, 3, 2]])
    assert torch.equal(x, torch.arange(4)[:, None] * 100 + torch.arange(64))


@jit_kernel(Y="i32[8]")
def gathered(Y, arrivals):
    with T.ClusterKernel(8, threads=32, cluster_dims=4) as bx:
        bar = T.alloc_cluster_barrier([arrivals])
        T.cluster_sync()
        T.atomic_add(Y[bx // 4 * 4 + 1], 1)
        T.mbarrier_arrive(bar, 0)
        if T.block_rank_in_cluster() == 0:
            T.mbarrier_wait_parity(bar, 0)
            if T.get_thread_binding() == 0:
                Y[bx] = Y[bx + 1]
        T.cluster_sync()


def test_all_blocks_arrive_at_the_mbarrier_of_the_first():
    y = torch.zeros(8, dtype=torch.int32)
    gathered(128)(y)
    assert y.tolist() == [128, 128, 0, 0] * 2


def test_a_block_waits_for_another_of_its_cluster_that_waits_for_a_later_cluster():
    @jit_kernel
    def kernel(Flag: T.Tensor((1,), "int32"), Y: T.Tensor((4,), "int32")):
        with T.ClusterKernel(4, threads=32, cluster_dims=2) as bx:
            tx = T.get_thread_binding()
            if tx == 0 and bx == 0:
                seen = T.alloc_var("int32", init=T.atomic_load(Flag[0], memory_order="acquire"))
                while seen < 1:
                    seen = T.atomic_load(Flag[0], memory_order="acquire")
            if tx == 0 and bx == 3:
                T.atomic_add(Flag[0], 1, memory_order="release")
            T.cluster_sync()
            if tx == 0:
                Y[bx] = 1

    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    kernel()(flag, y)
    assert y.tolist() == [1, 1, 1, 1]


def test_an_mbarrier_that_waits_for_more_threads_than_come_is_a_deadlock():
    with pytest.raises(DeadlockError, match="bar"):
        gathered(129)(torch.zeros(8, dtype=torch.int32))


@jit_kernel(A="b16[256, 128]", B="b16[128, 64]", C="f32[256, 64]")
def product_of_pairs(A, B, C, stages, first_alone, both_wait=True):
    """C = A @ B: two blocks load rows of A and half of B each; the first multiplies.

    The last warps read tensor memory, which the first frees at its end: TileLang puts a barrier of
    the cluster before that.
    """
    with T.ClusterKernel(2, 1, threads=256, cluster_dims=2) as (bx, by):
        a = T.alloc_shared((stages, 128, 32), "bfloat16")
        b = T.alloc_shared((stages, 32, 32), "bfloat16")
        c = T.alloc_tmem([128, 64], "float32")
        out = T.alloc_fragment((128, 64), "float32")
        loaded = T.alloc_cluster_barrier([32 * 2] * stages)
        consumed = T.alloc_cluster_barrier([1] * stages)
        full = T.alloc_barrier([1])
        tx = T.get_thread_binding()
        rank = T.block_rank_in_cluster()
        if tx < 32:
            for k in T.serial(4):
                T.mbarrier_wait_parity(consumed[k % stages], ((k // stages) & 1) ^ 1)
                T.tma_copy(
                    A[bx * 128 : (bx + 1) * 128, k * 32 : (k + 1) * 32],
                    a[k % stages, :, :],
                    barrier=loaded[k % stages],
                )
                T.tma_copy(
                    B[k * 32 : (k + 1) * 32, rank * 32 : (rank + 1) * 32],
                    b[k % stages, :, :],
                    barrier=loaded[k % stages],
                )
                T.mbarrier_arrive(loaded[k % stages], 0)
        elif tx < 64 and (not first_alone or rank == 0):
            for k in T.serial(4):
                if rank == 0:
                    T.mbarrier_wait_parity(loaded[k % stages], (k // stages) & 1)
                T.tcgen05_gemm(
                    a[k % stages, :, :],
                    b[k % stages, :, :],
                    c,
                    mbar=consumed[k % stages],
                    clear_accum=k == 0,
                    use_2cta=True,
                )
            if rank == 0:
                T.tcgen05_mma_arrive(full, arrive_2cta=True)
        elif tx >= 128:
            if both_wait or rank == 0:
                T.mbarrier_wait_parity(full, 0)
            T.copy(c, out)
            T.copy(out, C[bx * 128, by * 64])


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "adversarial"])
def test_two_blocks_multiply_together(schedule, first_alone):
    a, b = torch.randint(-4, 5, (256, 128)).bfloat16(), torch.randint(-4, 5, (128, 64)).bfloat16()
    c = torch.empty(256, 64)
    with interpret(arch="sm_100a", sanitize=True) as run, scheduled(schedule, seed=3):
        product_of_pairs(2, first_alone)(a, b, c)
    assert torch.equal(c, a.float() @ b.float())
    assert not run.reports


def test_the_second_block_must_wait_for_the_product_that_the_first_issued():
    a, b = torch.randn(256, 128).bfloat16(), torch.randn(128, 64).bfloat16()
    with interpret(arch="sm_100a", sanitize={"races"}, on_report="keep") as run:
        product_of_pairs(2, True, both_wait=False)(a, b, torch.empty(256, 64))
    report = run.reports[0]
    assert report.sanitizer == "races"
    assert report.buffer == "c"
    assert report.block == (1, 0)
    assert "the tcgen05 MMA issued by threads 32..63 of block (0, 0)" in report.message


def test_a_product_of_two_blocks_reads_what_one_has_not_loaded():
    a, b = torch.randn(256, 32).bfloat16(), torch.randn(32, 64).bfloat16()
    with interpret(arch="sm_100a", sanitize=True, on_report="keep") as run:
        unloaded_half()(a, b, torch.empty(256, 64))
    found = [r for r in run.reports if r.sanitizer == "uninitialised"]
    assert [r.buffer for r in found] == ["b"]


@jit_kernel(A="b16[256, 32]", B="b16[32, 64]", C="f32[256, 64]")
def unloaded_half(A, B, C):
    """Only the first block loads its half of B."""
    with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
        a = T.alloc_shared((128, 32), "bfloat16")
        b = T.alloc_shared((32, 32), "bfloat16")
        c = T.alloc_tmem([128, 64], "float32")
        out = T.alloc_fragment((128, 64), "float32")
        full = T.alloc_barrier([1])
        rank = T.block_rank_in_cluster()
        T.copy(A[bx * 128, 0], a)
        if rank == 0:
            T.copy(B[0, 0], b)
        T.cluster_sync()
        if T.get_thread_binding() < 32 and rank == 0:
            T.tcgen05_gemm(a, b, c, mbar=full, clear_accum=True, use_2cta=True)
        T.mbarrier_wait_parity(full, 0)
        T.copy(c, out)
        T.copy(out, C[bx * 128, 0])
