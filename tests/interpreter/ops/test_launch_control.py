"""Blocks that take over the work of clusters that have not started."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import SynchronizationError, interpret, scheduled

pytestmark = pytest.mark.usefixtures("interpreted")

WIDTH, HEIGHT = 8, 3


# Each block adds 1 at its own place, then at those of clusters that it cancels.
@jit_kernel(Y="i32[WIDTH, HEIGHT]")
def stealing(Y, width, height, waits=True, everyone=False):
    with T.ClusterKernel(WIDTH, HEIGHT, threads=32, cluster_dims=(width, height, 1)) as (bx, by):
        response = T.alloc_shared((2, 4), "uint32", scope="shared")
        come = T.alloc_cluster_barrier([1])
        ready = T.alloc_cluster_barrier([32 * width * height])
        tx = T.get_thread_binding()
        rank = T.block_rank_in_cluster()
        x = T.alloc_var("int32", init=bx)
        y = T.alloc_var("int32", init=by)
        for turn in T.serial(WIDTH * HEIGHT):
            if tx == 0:
                T.atomic_add(Y[x, y], 1)
                T.mbarrier_arrive_expect_tx(come, 16)
            T.mbarrier_arrive(ready, 0)
            if rank == 0:
                T.mbarrier_wait_parity(ready, turn & 1)
            if (tx == 0 or everyone) and rank == 0:
                if width * height > 1:
                    T.clc_try_cancel_multicast(response[1, :], come)
                else:
                    T.clc_try_cancel(response[1, :], come)
            if waits:
                T.mbarrier_wait_parity(come, turn & 1)
            if T.clc_is_canceled(response[1, :]) == 0:
                break
            x = T.cast(T.clc_get_first_ctaid_x(response[1, :]), "int32") + rank % width
            y = T.cast(T.clc_get_first_ctaid_y(response[1, :]), "int32") + rank // width


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "adversarial"])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (4, 3)])
def test_the_work_of_each_block_is_done_once(cluster, schedule):
    done = torch.zeros(WIDTH, HEIGHT, dtype=torch.int32)
    with interpret(arch="sm_100a"), scheduled(schedule, seed=1):
        stealing(*cluster)(done)
    assert done.eq(1).all()


def test_a_response_that_is_not_waited_for_is_a_race():
    done = torch.zeros(WIDTH, HEIGHT, dtype=torch.int32)
    with interpret(arch="sm_100a", sanitize=True) as session:
        stealing(1, 1)(done)
    assert not session.reports
    with interpret(arch="sm_100a", sanitize=True) as session:
        stealing(1, 1, waits=False)(done)
    assert any((r.sanitizer, r.buffer) == ("races", "response") for r in session.reports)


def test_only_one_thread_may_ask():
    done = torch.zeros(WIDTH, HEIGHT, dtype=torch.int32)
    with interpret(arch="sm_100a"), pytest.raises(SynchronizationError, match="by 32 threads"):
        stealing(1, 1, everyone=True)(done)
