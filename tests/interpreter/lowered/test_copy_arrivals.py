"""`cp.async.mbarrier.arrive.noinc`: threads arrive when their copies so far are done."""

from functools import partial

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.errors import DeadlockError, Unsupported


def found(factory, *arguments):
    """What the sanitizers report about a launch: (sanitizer, buffer)."""
    with interpret(arch="sm_90a", lowered=True, sanitize=True, on_report="keep") as run:
        factory()(*arguments)
    return [(report.sanitizer, report.buffer) for report in run.reports]


@jit_kernel(X="f16[32, 8]", Y="f16[32, 8]", threads=64)
def handed_over(X, Y, arrival):
    thread = T.get_thread_binding()
    part = T.alloc_shared((32, 8), "float16")
    ready = T.alloc_barrier(32)
    if thread < 32:
        if arrival == "early":
            T.cp_async_barrier_noinc(ready)
        T.ptx_cp_async(T.access_ptr(part[thread, 0], "w", 8), T.access_ptr(X[thread, 0], "r", 8), 8)
        if arrival == "tracked":
            T.cp_async_barrier_noinc(ready)
        if arrival == "plain":
            T.mbarrier_arrive(ready)
        if arrival == "half" and thread < 16:
            T.cp_async_barrier_noinc(ready)
    else:
        T.mbarrier_wait_parity(ready, 0)
        for i in T.serial(8):
            Y[thread - 32, i] = part[63 - thread, i]


@jit_kernel(X="f16[2, 32, 8]", Y="f16[2, 32, 8]", threads=32)
def waited_for(X, Y, stage):
    thread = T.get_thread_binding()
    part = T.alloc_shared((2, 32, 8), "float16")
    ready = T.alloc_barrier(32)
    for k in T.unroll(2):
        T.ptx_cp_async(
            T.access_ptr(part[k, thread, 0], "w", 8), T.access_ptr(X[k, thread, 0], "r", 8), 8
        )
        if k == 0:
            T.ptx_commit_group()
            T.cp_async_barrier_noinc(ready)
    T.ptx_commit_group()
    T.ptx_wait_group(1)
    for i in T.serial(8):
        Y[stage, thread, i] = part[stage, thread, i]


def test_a_tracked_copy_is_there_after_the_wait():
    x, y = torch.randn(32, 8).half(), torch.zeros(32, 8).half()
    assert found(partial(handed_over, "tracked"), x, y) == []
    assert torch.equal(y, x.flip(0))


@pytest.mark.parametrize("arrival", ["plain", "early"])
def test_an_arrival_that_does_not_track_the_copy(arrival):
    x, y = torch.randn(32, 8).half(), torch.zeros(32, 8).half()
    assert ("races", "part") in found(partial(handed_over, arrival), x, y)


def test_an_arrival_that_is_missing():
    x, y = torch.randn(32, 8).half(), torch.zeros(32, 8).half()
    with pytest.raises(DeadlockError, match="no thread can go on"):
        found(partial(handed_over, "none"), x, y)


def test_the_arrival_of_some_lanes_of_a_warp_is_refused():
    x, y = torch.randn(32, 8).half(), torch.zeros(32, 8).half()
    with pytest.raises(Unsupported, match=r"cp\.async of some lanes of a warp only"):
        found(partial(handed_over, "half"), x, y)


def test_waits_count_groups_not_arrivals():
    x, y = torch.randn(2, 32, 8).half(), torch.zeros(2, 32, 8).half()
    assert found(partial(waited_for, 0), x, y) == []
    assert torch.equal(y[0], x[0])
    assert ("races", "part") in found(partial(waited_for, 1), x, y)
