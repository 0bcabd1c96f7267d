"""Lowered code in which threads leave loops, assert, or wait for all blocks."""

from functools import partial

import pytest
import tilelang.language as T
import torch
from tilelang.tools.cuda import iket

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.errors import DeadlockError

ARCHITECTURES = ("sm_80", "sm_90a")


def found(factory, *arguments, arch="sm_80", **options):
    """What the sanitizers report about a launch: (sanitizer, buffer)."""
    with interpret(arch=arch, lowered=True, sanitize=True, on_report="keep", **options) as run:
        factory()(*arguments)
    return [(report.sanitizer, report.buffer) for report in run.reports]


# Loops that threads leave one by one --------------------------------------------------------------


@jit_kernel(X="i32[64]", Y="i32[64]", Z="i32[64]", threads=64)
def divergent(X, Y, Z, loop):
    thread = T.get_thread_binding()
    first = T.alloc_local((1,), "int32")
    total = T.alloc_local((1,), "int32")
    first[0] = -1
    total[0] = 0
    if loop == "while":
        k = T.alloc_local((1,), "int32")
        k[0] = -1
        while k[0] < 7:
            k[0] = k[0] + 1
            if (X[thread] >> k[0]) & 1 == 1:
                if k[0] % 3 == 2:
                    T.loop_break()
                first[0] = k[0]
            total[0] = total[0] + 1
    else:
        # Constant extents, or others in each thread.
        for k in T.serial(8 if loop == "constant" else 8 - thread % 2):
            if k == 6:
                continue
            if (X[thread] >> k) & 1 == 1:
                if k % 3 == 2:
                    T.loop_break()
                first[0] = k
            total[0] = total[0] + 1
    Y[thread] = first[0]
    Z[thread] = total[0]


def expected(x, loop):
    rows = []
    for thread, bits in enumerate(x.tolist()):
        first, total = -1, 0
        for k in range(8 - thread % 2 if loop == "varying" else 8):
            if k == 6 and loop != "while":
                continue
            if bits >> k & 1:
                if k % 3 == 2:
                    break
                first = k
            total += 1
        rows.append((first, total))
    return torch.tensor(rows, dtype=torch.int32).T


@pytest.mark.parametrize("loop", ["constant", "varying", "while"])
def test_threads_leave_loops_one_by_one(loop):
    x, y, z = torch.randint(0, 256, (64,), dtype=torch.int32), *torch.zeros(2, 64).int()
    assert found(partial(divergent, loop), x, y, z) == []
    assert torch.equal(torch.stack([y, z]), expected(x, loop))


# Assertions, and events of the profiler -----------------------------------------------------------


@jit_kernel(X="i32[64]", threads=64)
def positive(X):
    thread = T.get_thread_binding()
    iket.mark("start")
    if thread < 60:
        T.device_assert(X[thread] > 0, "not positive")


def test_an_assertion_of_the_kernel():
    x = torch.ones(64, dtype=torch.int32)
    x[60:] = 0
    assert found(positive, x) == []
    x[33] = 0
    with (
        interpret(arch="sm_80", lowered=True) as _,
        pytest.raises(AssertionError, match=r"thread 33.*test_lowered_control.*not positive"),
    ):
        positive()(x)


# `T.sync_grid` ------------------------------------------------------------------------------------


@jit_kernel(X="f32[blocks, 128]", Y="f32[blocks, 128]", Z="f32[blocks, 128]")
def neighbours(X, Y, Z, blocks, synchronizes):
    with T.Kernel(blocks, threads=128) as block:
        thread = T.get_thread_binding()
        Y[block, thread] = X[block, thread] * 2
        if synchronizes:
            T.sync_grid()
        Z[block, thread] = Y[(block + 1) % blocks, 127 - thread]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_blocks_wait_for_one_another(arch):
    """More than run together elsewhere."""
    x, y, z = torch.randn(40, 128), torch.zeros(40, 128), torch.zeros(40, 128)
    assert found(partial(neighbours, 40, True), x, y, z, arch=arch) == []
    assert torch.equal(z, x.roll(-1, 0).flip(1) * 2)
    assert ("races", "Y") in found(partial(neighbours, 40, False), x, y, z, arch=arch)


@jit_kernel(A="f16[2, 64, 64]", B="f16[64, 64]", C="f32[2, 64, 64]", D="f32[2, 64, 64]")
def product_and_sync(A, B, C, D):
    with T.Kernel(2, threads=128) as block:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[block, 0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C[block, 0, 0])
        T.sync_grid()
        for i, j in T.Parallel(64, 64):
            D[block, i, j] = C[1 - block, i, j] + 1


def test_tilelang_gives_a_grid_barrier_to_the_consumers_alone():
    """0.1.15, warp specialization: the producer warps return, thread 0 with them."""
    a, b = torch.randint(-3, 4, (2, 64, 64)).half(), torch.randint(-3, 4, (64, 64)).half()
    c, d = torch.zeros(2, 2, 64, 64)
    assert found(product_and_sync, a, b, c, d) == []
    assert torch.equal(d, (a.float() @ b.float()).flip(0) + 1)
    with pytest.raises(DeadlockError, match=r"T\.sync_grid: not all threads of a block reach it"):
        found(product_and_sync, a, b, c, d, arch="sm_90a")
