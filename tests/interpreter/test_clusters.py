"""Clusters of blocks: ranks, barriers of all threads, arrivals at another block's mbarrier."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import DeadlockError

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_block_knows_its_rank_in_a_cluster():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(Y: T.Tensor((8, 6), "int32")):
            with T.ClusterKernel(8, 6, threads=32, cluster_dims=(4, 2, 1)) as (bx, by):
                T.cluster_sync()
                if T.get_thread_binding() == 0:
                    Y[bx, by] = T.block_rank_in_cluster()

        return main

    y = torch.empty(8, 6, dtype=torch.int32)
    kernel()(y)
    assert y.tolist() == [[x % 4 + 4 * (z % 2) for z in range(6)] for x in range(8)]


def test_blocks_of_a_cluster_exchange_what_they_wrote_before_a_barrier():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 64), "int32"), Y: T.Tensor((4, 64), "int32")):
            with T.ClusterKernel(4, threads=64, cluster_dims=2) as bx:
                tx = T.get_thread_binding()
                X[bx, tx] = bx * 100 + tx
                T.cluster_arrive()
                T.cluster_wait()
                Y[bx, tx] = X[bx + 1 - 2 * T.block_rank_in_cluster(), tx]

        return main

    x, y = torch.zeros(4, 64, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int32)
    kernel()(x, y)
    assert torch.equal(y, x[[1, 0, 3, 2]])
    assert torch.equal(x, torch.arange(4)[:, None] * 100 + torch.arange(64))


@tilelang.jit
def gathered(arrivals):
    @T.prim_func
    def main(Y: T.Tensor((8,), "int32")):
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

    return main


def test_all_blocks_arrive_at_the_mbarrier_of_the_first():
    y = torch.zeros(8, dtype=torch.int32)
    gathered(128)(y)
    assert y.tolist() == [128, 128, 0, 0] * 2


def test_an_mbarrier_that_waits_for_more_threads_than_come_is_a_deadlock():
    with pytest.raises(DeadlockError, match="bar"):
        gathered(129)(torch.zeros(8, dtype=torch.int32))
