"""Copies in a cluster: loads into several blocks, copies to the shared memory of another block."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import (
    DeadlockError,
    LaunchError,
    SynchronizationError,
    Unsupported,
    interpret,
    scheduled,
)

pytestmark = pytest.mark.usefixtures("interpreted")

SCHEDULES = ["eager", "lazy", "random", "adversarial"]


@jit_kernel(X="f16[8, 3, 16]", Y="f16[8, 3, 16]")
def multicast(X, Y, mask, together=True):
    with T.ClusterKernel(8, threads=128, cluster_dims=4) as bx:
        tile = T.alloc_shared((3, 16), "float16")
        if together:
            T.cluster_sync()
        for k in T.serial(3):
            T.copy_cluster(X[bx, k, :], tile[k, :], cluster_mask=mask)
            T.cluster_sync()
        T.copy(tile, Y[bx, :, :])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mask", [0b0011, 0b1110, 0b1111])
def test_the_first_block_of_the_mask_loads_for_all_of_it(mask, schedule):
    x, y = torch.randn(8, 3, 16).half(), torch.empty(8, 3, 16, dtype=torch.float16)
    with interpret(sanitize=True) as run, scheduled(schedule, seed=2):
        multicast(mask)(x, y)
    assert not run.reports
    first = (mask & -mask).bit_length() - 1
    source = [b - b % 4 + first if mask >> b % 4 & 1 else b for b in range(8)]
    assert torch.equal(y, x[source])


@pytest.mark.parametrize("mask", [0b10000, 0b1])
def test_blocks_outside_of_the_cluster_are_refused(mask):
    x = torch.randn(8, 3, 16).half()
    if mask == 1:
        multicast(mask)(x, x.clone())
        return
    with pytest.raises(Unsupported, match="cluster_mask from X to tile"):
        multicast(mask)(x, x.clone())


@jit_kernel(X="f32[6, 8, 8]", Y="f32[2, 6, 8, 8]")
def multicast_ring(X, Y, slots, together=True):
    with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
        tile = T.alloc_shared((slots, 8, 8), "float32")
        come = T.alloc_barrier([128] * slots)
        T.cluster_sync()
        for k in T.serial(6):
            T.tma_copy(X[k, :, :], tile[k % slots, :, :], barrier=come[k % slots], cluster_mask=3)
            T.mbarrier_arrive(come[k % slots])
            T.mbarrier_wait_parity(come[k % slots], k // slots % 2)
            T.copy(tile[k % slots, :, :], Y[bx, k, :, :])
            if together:
                T.cluster_sync()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_block_waits_at_its_own_barrier(schedule):
    x, y = torch.randn(6, 8, 8), torch.empty(2, 6, 8, 8)
    with scheduled(schedule, seed=4):
        multicast_ring(2)(x, y)
    assert torch.equal(y, x.expand_as(y))


def test_eager_blocks_run_side_by_side():
    x, y = torch.randn(6, 8, 8), torch.empty(2, 6, 8, 8)
    multicast_ring(2, together=False)(x, y)
    assert torch.equal(y, x.expand_as(y))


# Each block of a cluster passes its tile to the next.
@jit_kernel(X="f32[6, 4, 16]", Y="f32[6, 4, 16]")
def passed_on(X, Y, columns, barrier, ends_together=True):
    with T.ClusterKernel(6, threads=128, cluster_dims=3) as bx:
        mine = T.alloc_shared((4, 16), "float32")
        given = T.alloc_shared((4, 16), "float32")
        come = T.alloc_cluster_barrier([1])
        to = (T.block_rank_in_cluster() + 1) % 3
        T.copy(X[bx, :, :], mine)
        T.fill(given, 0)
        T.cluster_sync()
        if barrier:
            T.copy_cluster(
                mine[:, :columns], given[:, :columns], dst_block=to, remote_barrier=come[0]
            )
            T.mbarrier_wait_parity(come[0], 0)
        else:
            T.copy_cluster(mine[:, :columns], given[:, :columns], dst_block=to)
            T.cluster_sync()
        T.copy(given, Y[bx, :, :])
        if ends_together:
            T.cluster_sync()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("columns", [16, 8, 7])
def test_a_tile_goes_to_the_next_block(columns, barrier, schedule):
    x, y = torch.randn(6, 4, 16), torch.empty(6, 4, 16)
    with scheduled(schedule, seed=6):
        passed_on(columns, barrier)(x, y)
    right = torch.zeros(6, 4, 16)
    right[:, :, :columns] = x[[2, 0, 1, 5, 3, 4], :, :columns]
    assert torch.equal(y, right)


def test_a_block_may_not_end_before_its_copies():
    x = torch.randn(6, 4, 16)
    with scheduled("lazy"), pytest.raises(SynchronizationError, match="nothing waits for it"):
        passed_on(16, True, ends_together=False)(x, x.clone())


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_grid_has_whole_clusters(arch):
    """CUDA launches no other."""
    x = torch.randn(7, 4, 16)
    with interpret(arch=arch), pytest.raises(LaunchError, match=r"grid=\(7,1,1\).* of a cluster"):
        whole_clusters()(x, x.clone())
    with interpret(arch=arch):
        whole_clusters()(x[:6], x[:6].clone())


@jit_kernel(X="f32[n, 4, 16]", Y="f32[n, 4, 16]")
def whole_clusters(X, Y):
    with T.ClusterKernel(X.shape[0], threads=128, cluster_dims=3) as bx:
        tile = T.alloc_shared((4, 16), "float32")
        T.copy(X[bx, :, :], tile)
        T.cluster_sync()
        T.copy(tile, Y[bx, :, :])


def reports_of(kernel, x, y):
    with interpret(sanitize=True, on_report="keep") as run:
        kernel(x, y)
    return [(r.sanitizer, r.block, r.message) for r in run.reports]


def test_blocks_start_before_others_load_for_them():
    x = torch.randn(8, 3, 16).half()
    found = reports_of(multicast(0b11, together=False), x, x.clone())
    assert [name for name, *_ in found] == ["barriers"]
    assert "accesses block (1), which may not have started" in found[0][2]


def test_a_block_reads_a_tile_before_another_loads_the_next_one_for_it():
    x, y = torch.randn(6, 8, 8), torch.empty(2, 6, 8, 8)
    with pytest.raises(DeadlockError), interpret(sanitize=True, on_report="keep") as run:
        multicast_ring(2, together=False)(x, y)
    races = [r for r in run.reports if r.sanitizer == "races"]
    assert [r.block for r in races] == [(1,)]
    assert "the TMA load issued by threads 0..127 of block (0) writes" in races[0].message


@pytest.mark.parametrize("columns", [16, 7])
@pytest.mark.parametrize("barrier", [False, True])
def test_a_tile_for_the_next_block_is_sanitized(columns, barrier):
    x = torch.randn(6, 4, 16)
    assert not reports_of(passed_on(columns, barrier), x, torch.empty(6, 4, 16))


def test_a_block_ends_while_another_may_write_to_it():
    x = torch.randn(6, 4, 16)
    found = reports_of(unawaited(), x, torch.empty(6, 4, 16))
    assert {name for name, *_ in found} == {"barriers"}
    assert any("may go on when block" in text for *_, text in found)


@jit_kernel(X="f32[6, 4, 16]", Y="f32[6, 4, 16]")
def unawaited(X, Y):
    with T.ClusterKernel(6, threads=128, cluster_dims=3) as bx:
        mine = T.alloc_shared((4, 16), "float32")
        given = T.alloc_shared((4, 16), "float32")
        T.copy(X[bx, :, :], mine)
        T.cluster_sync()
        T.copy_cluster(mine, given, dst_block=(T.block_rank_in_cluster() + 1) % 3)
        T.copy(mine, Y[bx, :, :])
