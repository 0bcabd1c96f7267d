"""Races between threads that only lowered code shows."""

from functools import partial

import pytest
import tilelang.language as T
import torch
from scaled_products import scaled_products

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret


def found(factory, *arguments, arch="sm_80", **options):
    """What the sanitizers report about a launch: (sanitizer, buffer)."""
    with interpret(arch=arch, lowered=True, sanitize=True, on_report="keep", **options) as run:
        factory()(*arguments)
    return [(report.sanitizer, report.buffer) for report in run.reports]


@jit_kernel(X="f32[4]", S="f32[4]")
def update(X, S):
    with T.Kernel(4, threads=64) as block:
        S[block] = S[block] * 0.5 + X[block]


@jit_kernel(Y="i32[4]")
def constant(Y):
    with T.Kernel(4, threads=64) as block:
        Y[block] = block


@jit_kernel(
    X="f32[256]", Y="f32[256]", threads=128, pass_configs={"tl.disable_thread_storage_sync": True}
)
def reversed_without_barrier(X, Y):
    part = T.alloc_shared((256,), "float32")
    for i in T.Parallel(256):
        part[i] = X[i]
    for i in T.Parallel(256):
        Y[i] = part[255 - i]


@jit_kernel(X="f32[256]", Y="f32[256]", threads=128)
def reversed_(X, Y):
    part = T.alloc_shared((256,), "float32")
    for i in T.Parallel(256):
        part[i] = X[i]
    for i in T.Parallel(256):
        Y[i] = part[255 - i]


@jit_kernel(X="f32[3, 128]", Y="f32[3, 128]", threads=128)
def reversed_rows(X, Y, loop):
    part = T.alloc_shared((128,), "float32")
    if loop == "while":
        row = T.alloc_var("int32")
        row = 0
        while row < 3:
            for i in T.Parallel(128):
                part[i] = X[row, i]
            for i in T.Parallel(128):
                Y[row, i] = part[127 - i]
            row = row + 1
    else:
        for k in T.serial(3):
            for i in T.Parallel(128):
                part[i] = X[k, i]
            for i in T.Parallel(128):
                Y[k, i] = part[127 - i]


@jit_kernel(A="f32[16, 16]", C="f32[16, 16]", threads=128)
def serial_fragment(A, C):
    f = T.alloc_fragment((16, 16), "float32")
    T.copy(A, f)
    for i in T.serial(16):
        for j in T.serial(16):
            C[i, j] = f[i, j] * 2.0


def test_every_thread_reads_and_writes_one_element():
    assert ("races", "S") in found(update, torch.ones(4), torch.zeros(4))


def test_every_thread_stores_the_same_value():
    assert found(constant, torch.zeros(4, dtype=torch.int32)) == []


def test_a_barrier_that_lowering_leaves_out():
    x, y = torch.randn(256), torch.empty(256)
    assert ("races", "part") in found(reversed_without_barrier, x, y)
    assert found(reversed_, x, y) == []
    assert torch.equal(y, x.flip(0))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_tilelang_puts_no_barrier_at_the_end_of_a_while_loop(arch):
    """0.1.15: an iteration writes what slower warps still read in the one before."""
    x, y = torch.randn(3, 128), torch.empty(3, 128)
    assert found(partial(reversed_rows, "for"), x, y, arch=arch) == []
    assert torch.equal(y, x.flip(1))
    assert found(partial(reversed_rows, "while"), x, y, arch=arch) == [("races", "part")]


def test_tilelang_frees_a_stage_before_what_cp_async_brought_is_read():
    """0.1.15, warp specialization: consumers arrive right after the product of the stage."""
    a, b = torch.randint(-3, 4, (256, 64)).half(), torch.randint(-3, 4, (64, 64)).half()
    s, c = torch.randint(-3, 4, (256,)).float(), torch.zeros(256, 64)
    inputs = a, b, s, c
    assert found(partial(scaled_products, "before"), *inputs, arch="sm_90a") == []
    assert torch.equal(c, a.float() @ b.float() + s[:, None])
    assert found(partial(scaled_products, "after"), *inputs) == []
    after = found(partial(scaled_products, "after"), *inputs, arch="sm_90a")
    assert after == [("races", "scale")]


def test_a_fragment_indexed_in_serial_loops():
    a, c = torch.randn(16, 16), torch.full((16, 16), float("nan"))
    assert ("races", "C") in found(serial_fragment, a, c)


@jit_kernel(X="f32[61, 64]", Y="f32[130, 64]")
def copied_to_all(X, Y):
    with T.Kernel(130, threads=64) as block:
        for i in T.Parallel(64):
            Y[block, i] = X[block % 61, i]


def test_blocks_that_read_one_tensor_in_several_groups():
    # The last group of blocks that run together is smaller than the one before.
    x, y = torch.randn(61, 64), torch.empty(130, 64)
    assert found(copied_to_all, x, y) == []
    assert torch.equal(y, x[torch.arange(130) % 61])


@jit_kernel(X="f32[4, 64]", Y="f32[4, 64]", Z="f32[4, 64]")
def two_launches(X, Y, Z):
    with T.Kernel(4, threads=64) as block:
        for i in T.Parallel(64):
            Y[block, i] = X[block, i] * 2
    with T.Kernel(4, threads=64) as block:
        for i in T.Parallel(64):
            Z[block, i] = Y[3 - block, 63 - i] + 1


def test_the_second_launch_of_a_kernel_comes_after_the_first():
    x, y, z = torch.randn(4, 64), torch.empty(4, 64), torch.empty(4, 64)
    assert found(two_launches, x, y, z) == []
    assert torch.equal(z, x.flip(0, 1) * 2 + 1)


@jit_kernel(X="f32[64]", Y="f32[2, 64]", threads=64)
def read_by_both_warps(X, Y):
    thread = T.get_thread_binding()
    Y[0, thread] = X[63 - thread]
    Y[1, thread] = X[thread]
    X[thread] = Y[1, thread] + 1


@jit_kernel(X="f32[64]", Y="f32[64]", threads=64)
def read_before_a_barrier(X, Y):
    thread = T.get_thread_binding()
    Y[thread] = X[63 - thread]
    T.sync_threads()
    X[thread] = X[thread] + 1


@jit_kernel(X="f32[2, 64]", Y="f32[2, 64]")
def read_by_another_block(X, Y):
    with T.Kernel(2, threads=64) as block:
        thread = T.get_thread_binding()
        Y[block, thread] = X[1, thread]
        if block == 1:
            X[1, thread] = Y[block, thread] + 1


def test_the_writer_of_an_element_is_its_last_reader_but_not_the_only_one():
    assert ("races", "X") in found(read_by_both_warps, torch.ones(64), torch.empty(2, 64))
    assert found(read_before_a_barrier, torch.ones(64), torch.empty(64)) == []
    assert ("races", "X") in found(read_by_another_block, torch.ones(2, 64), torch.empty(2, 64))


@jit_kernel(X="f32[32]", Y="f32[32]", threads=64)
def handed_over(writers, synchronizes, X, Y):
    thread = T.get_thread_binding()
    part = T.alloc_shared((32,), "float32")
    ready = T.alloc_barrier(1)
    if thread < 32:
        if writers == 1:
            if thread == 0:
                for i in T.serial(32):
                    part[i] = X[i]
        else:
            part[thread] = X[thread]
        if synchronizes:
            T.sync_warp()
        if thread == 0:
            T.mbarrier_arrive(ready)
    else:
        T.mbarrier_wait_parity(ready, 0)
        Y[thread - 32] = part[63 - thread]


@jit_kernel(X="f32[32]", Y="f32[32]", threads=64)
def taken_over(synchronizes, X, Y):
    thread = T.get_thread_binding()
    part = T.alloc_shared((32,), "float32")
    free = T.alloc_barrier(1)
    if thread < 32:
        part[thread] = X[thread]
        T.sync_warp()
        Y[thread] = part[31 - thread]
        if synchronizes:
            T.sync_warp()
        if thread == 0:
            T.mbarrier_arrive(free)
    else:
        T.mbarrier_wait_parity(free, 0)
        part[thread - 32] = 0


@pytest.mark.parametrize("arguments", [(32, True), (1, False), (1, True)])
def test_one_lane_arrives_for_its_warp(arguments):
    x, y = torch.randn(32), torch.empty(32)
    assert found(partial(handed_over, *arguments), x, y, arch="sm_90a") == []
    assert torch.equal(y, x.flip(0))


def test_one_lane_arrives_while_others_may_still_access_memory():
    x, y = torch.randn(32), torch.empty(32)
    assert ("races", "part") in found(partial(handed_over, 32, False), x, y, arch="sm_90a")
    assert found(partial(taken_over, True), x, y, arch="sm_90a") == []
    assert ("races", "part") in found(partial(taken_over, False), x, y, arch="sm_90a")


@jit_kernel(C="i32[2]", Y="i32[n]")
def counted(C, Y, n):
    with T.Kernel(n // 64, threads=64) as block:
        thread = T.get_thread_binding()
        T.atomic_add(C[0], 1)
        T.atomic_store(C[1], block * 64 + thread)
        Y[block * 64 + thread] = T.atomic_load(C[0])


@jit_kernel(X="i32[4]", Y="i32[4]")
def chained(X, Y, ahead):
    """Each block waits for the one before it, or for the one behind it."""
    with T.Kernel(4, threads=32) as block:
        if T.get_thread_binding() == 0:
            of = block + ahead
            seen = T.alloc_var("int32", init=0)
            if of >= 0 and of < 4:
                seen = T.atomic_load(X[of], memory_order="acquire")
                while seen == 0:
                    seen = T.atomic_load(X[of], memory_order="acquire")
            Y[block] = seen + 1
            T.atomic_store(X[block], seen + 1, memory_order="release")


def test_blocks_that_wait_for_one_another_run_in_turn():
    x, y = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert found(partial(chained, -1), x, y) == []
    assert y.tolist() == [1, 2, 3, 4]
    x.zero_()
    with pytest.raises(Unsupported, match="20000 iterations that waits for others"):
        found(partial(chained, 1), x, y)


@jit_kernel(X="i32[64]", Y="i32[64]", Z="i32[64]", threads=64)
def read_then_counted(atomic, synchronizes, X, Y, Z):
    thread = T.get_thread_binding()
    if atomic:
        Y[thread] = T.atomic_load(X[63 - thread])
    else:
        Y[thread] = X[63 - thread]
    if synchronizes:
        T.sync_threads()
    T.atomic_add(X[thread], 1)


def test_atomics_need_no_order_among_themselves():
    c, y = torch.zeros(2, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    assert found(partial(counted, 256), c, y) == []
    assert c[0] == 256


@pytest.mark.parametrize(
    ("atomic", "synchronizes", "races"),
    [(False, False, True), (False, True, False), (True, False, False)],
)
def test_an_atomic_after_a_read_by_another_thread(atomic, synchronizes, races):
    x, y, z = (torch.zeros(64, dtype=torch.int32) for _ in range(3))
    reports = found(partial(read_then_counted, atomic, synchronizes), x, y, z)
    assert reports == ([("races", "X")] if races else [])


@jit_kernel(C="i32[1]", Y="i32[64]", threads=64)
def set_by_all(then, synchronizes, C, Y):
    thread = T.get_thread_binding()
    C[0] = 7
    if synchronizes:
        T.sync_threads()
    if then == "atomic":
        T.atomic_add(C[0], 1)
    elif then == "one":
        if thread == 40:
            C[0] = 8
    else:
        C[0] = 9  # by all threads: each overwrites what it has written


@pytest.mark.parametrize("then", ["atomic", "one", "all"])
@pytest.mark.parametrize("synchronizes", [False, True])
def test_an_element_that_all_threads_set(then, synchronizes):
    c, y = torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    reports = found(partial(set_by_all, then, synchronizes), c, y)
    assert reports == ([("races", "C")] if then != "all" and not synchronizes else [])
    assert c[0] == {"atomic": 71, "one": 8, "all": 9}[then]


# Each block leaves a part, and the one that counts last adds them up.
@jit_kernel(X="f32[4, 32]", P="f32[4, 32]", C="i32[1]", Y="f32[32]")
def counted_parts(counts, X, P, C, Y):
    with T.Kernel(4, threads=32) as block:
        last = T.alloc_shared((1,), "int32")
        thread = T.get_thread_binding()
        P[block, thread] = X[block, thread]
        T.sync_threads()
        if thread == 0:
            last[0] = T.atomic_add(C[0], 1, return_prev=True) if counts else block
        T.sync_threads()
        if last[0] == 3:
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for part in T.serial(4):
                total[0] += P[part, thread]
            Y[thread] = total[0]


def test_blocks_that_a_counter_orders_have_no_race():
    def run(counts):
        x, parts = torch.arange(128.0).view(4, 32), torch.zeros(4, 32)
        count, y = torch.zeros(1, dtype=torch.int32), torch.zeros(32)
        reports = found(partial(counted_parts, counts), x, parts, count, y)
        assert torch.equal(y, x.sum(0))
        return {each for each in reports if each[0] == "races"}

    assert run(counts=True) == set()
    assert run(counts=False) == {("races", "P")}
