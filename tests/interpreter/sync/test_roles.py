"""Blocks whose warps have different roles: right values under every schedule, and reports."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import (
    SCHEDULES,
    DeadlockError,
    RaceError,
    SynchronizationError,
    interpret,
    interpreted,
    scheduled,
)

pytestmark = pytest.mark.usefixtures("interpreted")
M, N, K, BLOCK, STEP, STAGES = 128, 128, 160, 64, 32, 2
SOME_SCHEDULES = [
    (s, seed) for s in SCHEDULES for seed in range(1 if s in ("eager", "lazy") else 4)
]


@jit_kernel(A="f16[M, K]", B="f16[K, N]", C="f32[M, N]", out_idx=[-1])
def pipelined_gemm(A, B, C, drop="", prime=1, parity=0):
    """A double-buffered product: one warpgroup copies, another multiplies.

    `drop` names the wait or arrive that is left out.
    """
    with T.Kernel(N // BLOCK, M // BLOCK, threads=256) as (bx, by):
        As = T.alloc_shared((STAGES, BLOCK, STEP), "float16")
        Bs = T.alloc_shared((STAGES, STEP, BLOCK), "float16")
        acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
        full = T.alloc_barrier([128] * STAGES)
        empty = T.alloc_barrier([128] * STAGES)
        if T.get_thread_binding() >= 128:
            for k in T.serial(K // STEP):
                if drop != "wait empty":
                    T.mbarrier_wait_parity(empty[k % STAGES], (k // STAGES + prime) % 2)
                T.tma_copy(
                    A[by * BLOCK : (by + 1) * BLOCK, k * STEP : (k + 1) * STEP],
                    As[k % STAGES, :, :],
                    barrier=full[k % STAGES],
                )
                T.tma_copy(
                    B[k * STEP : (k + 1) * STEP, bx * BLOCK : (bx + 1) * BLOCK],
                    Bs[k % STAGES, :, :],
                    barrier=full[k % STAGES],
                )
                if drop != "arrive full":
                    T.mbarrier_arrive(full[k % STAGES])
        else:
            T.clear(acc)
            for k in T.serial(K // STEP):
                if drop != "wait full":
                    T.mbarrier_wait_parity(full[k % STAGES], (k // STAGES + parity) % 2)
                T.gemm(As[k % STAGES, :, :], Bs[k % STAGES, :, :], acc)
                if drop != "arrive empty":
                    T.mbarrier_arrive(empty[k % STAGES])
            T.copy(acc, C[by * BLOCK, bx * BLOCK])


@pytest.fixture
def operands():
    return torch.randn(M, K).half(), torch.randn(K, N).half()


@pytest.mark.parametrize(("schedule", "seed"), SOME_SCHEDULES)
def test_a_pipeline_of_two_roles_is_right_under_every_schedule(operands, schedule, seed):
    a, b = operands
    with scheduled(schedule, seed=seed):
        got = pipelined_gemm()(a, b)
    torch.testing.assert_close(got, a.float() @ b.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("drop", "error", "words"),
    [
        ("wait empty", RaceError, ["race on As", "the TMA load issued by threads 128..255"]),
        # The consumer may even be at its end, with all phases gone by, before the producer starts.
        ("wait full", SynchronizationError, ["threads 0..127", "threads 128..255"]),
        ("arrive full", DeadlockError, ["parity 0 of full[0]", "nothing in the kernel arrives"]),
        ("arrive empty", DeadlockError, ["parity 0 of empty[0]", "nothing in the kernel arrives"]),
    ],
)
def test_a_wait_or_arrive_left_out_is_reported(operands, schedule, drop, error, words):
    with scheduled(schedule), pytest.raises(error) as caught:
        pipelined_gemm(drop)(*operands)
    for word in words:
        assert word in str(caught.value)
    assert __file__ in str(caught.value)


def test_a_stage_that_was_never_primed_is_reported(operands):
    with pytest.raises(DeadlockError) as caught:
        pipelined_gemm(prime=0)(*operands)
    text = str(caught.value)
    assert "threads 128..255 wait for parity 0 of empty[0]" in text
    assert "never primed" in text
    assert "could arrive: threads 0..127" in text


@jit_kernel(out_idx=[-1], threads=64)
def unordered(Y: T.Tensor((32,), "float32")):
    s = T.alloc_shared((32,), "float32")
    tx = T.get_thread_binding()
    if tx < 32:
        for i in T.Parallel(32):
            s[i] = i
    else:
        for i in T.Parallel(32):
            Y[i] = s[i]


def test_a_race_is_reported_also_where_the_values_are_right():
    assert torch.equal(unordered()(), torch.arange(32.0))
    with scheduled(), pytest.raises(RaceError) as caught:
        unordered()()
    text = str(caught.value)
    assert "race on s: threads 32..63 read s[0:32]" in text
    assert "nothing orders this after threads 0..31 write it" in text


def test_a_race_is_a_report_of_the_sanitizer():
    with interpret(sanitize=True) as run:
        assert torch.equal(unordered()(), torch.arange(32.0))
    (report,) = run.reports
    assert (report.sanitizer, report.kernel, report.buffer) == ("races", "unordered", "s")
    assert report.file == report.other.file == __file__
    assert report.other.action == "write"
    assert report.other.access == "a write by threads 0..31, block (0,)"
    assert report.message == (
        "threads 32..63 read s[0:32], and nothing orders this after threads 0..31 write it"
    )
    assert report.hint.startswith("threads 32..63 must wait for threads 0..31: T.mbarrier_arrive()")
    with interpret(sanitize="bounds") as run:
        unordered()()
    assert run.reports == []


def test_a_schedule_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="eager, lazy, random, adversarial"), scheduled("fair"):
        pass


@jit_kernel(Y="f32[32]", out_idx=[-1], threads=64)
def counted(Y, threads_arriving):
    s = T.alloc_shared((32,), "float32")
    bar = T.alloc_barrier(threads_arriving)
    tx = T.get_thread_binding()
    if tx < 32:
        for i in T.Parallel(32):
            s[i] = i
        T.mbarrier_arrive(bar)
    else:
        T.mbarrier_wait_parity(bar, 0)
        for i in T.Parallel(32):
            Y[i] = s[i]


def test_a_barrier_counts_threads():
    assert torch.equal(counted(32)(), torch.arange(32.0))
    with pytest.raises(DeadlockError, match="32 of 33 arrivals"):
        counted(33)()


def test_more_arrivals_than_a_phase_takes_go_on_to_the_next():
    # 32 threads complete 32 phases of one arrival: the parity is 0 again.
    with pytest.raises(DeadlockError, match="phase 32"):
        counted(1)()


def test_errors_are_errors_of_the_interpreter():
    assert issubclass(RaceError, SynchronizationError)
    assert issubclass(DeadlockError, SynchronizationError)


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tilelangs_own_barriers_order_statements_one_after_the_other(schedule, coverage):
    @jit_kernel(out_idx=[-1], threads=256)
    def turns(Y: T.Tensor((4, 32), "float32")):
        s = T.alloc_shared((32,), "float32")
        for k in T.serial(4):
            with T.ws(0):
                for i in T.Parallel(32):
                    s[i] = i * k
            with T.ws(1):
                for i in T.Parallel(32):
                    Y[k, i] = s[i]

    with interpret(coverage=coverage), scheduled(schedule):
        got = turns()()
    assert torch.equal(got, torch.arange(4.0)[:, None] * torch.arange(32.0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_all_roles_do_together_is_done_once(schedule):
    @jit_kernel(out_idx=[-1], threads=256)
    def together(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        s = T.alloc_shared((64,), "float32")
        f = T.alloc_fragment((64,), "float32")
        T.copy(X, s)
        with T.ws(1):
            for i in T.Parallel(64):
                s[i] = s[i] * 2
        for i in T.Parallel(64):
            s[i] = s[i] + 1
        T.copy(s, f)
        for i in T.Parallel(64):
            T.atomic_add(Y[i], f[i])

    x = torch.randn(64)
    y = torch.zeros(64)
    with scheduled(schedule):
        interpreted(together.get_tir())(x, y)
    torch.testing.assert_close(y, x * 2 + 1)


# A warp copies row by row, each thread four elements; the barrier counts the copies.
@jit_kernel(X="f16[4, 128]", Y="f16[4, 128]", out_idx=[-1], threads=64)
def copied_by_threads(X, Y, wait):
    s = T.alloc_shared((4, 128), "float16")
    ready = T.alloc_barrier(32)
    tx = T.get_thread_binding()
    if tx < 32:
        for r in T.serial(4):
            T.ptx_cp_async(
                T.access_ptr(s[r, tx * 4], "w", 4), T.access_ptr(X[r, tx * 4], "r", 4), 4
            )
        T.cp_async_barrier_noinc(ready)
    else:
        if wait:
            T.mbarrier_wait_parity(ready, 0)
        T.copy(s, Y)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_that_threads_issue_complete_at_a_barrier(schedule):
    x = torch.randn(4, 128).half()
    with scheduled(schedule):
        assert torch.equal(copied_by_threads(True)(x), x)
        with pytest.raises(RaceError, match=r"race on s: .*T\.(ptx_wait_group|mbarrier)"):
            copied_by_threads(False)(x)


@pytest.mark.parametrize("scope", ["local", "shared"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_where_a_copy_goes_is_decided_when_it_is_issued(schedule, scope):
    @jit_kernel(out_idx=[-1], threads=64)
    def moved(X: T.Tensor((4, 64), "float16"), Y: T.Tensor((2, 64), "float16")):
        s = T.alloc_shared((2, 64), "float16")
        row = T.alloc_local([1], "int32") if scope == "local" else T.alloc_shared([1], "int32")
        row[0] = 3
        T.async_copy(X[row[0], :], s[0, :])
        T.sync_threads()
        row[0] = 1
        T.sync_threads()
        T.async_copy(X[row[0], :], s[1, :])
        T.ptx_wait_group(0)
        T.copy(s, Y)

    x = torch.randn(4, 64).half()
    with scheduled(schedule):
        assert torch.equal(moved()(x), x[[3, 1]])


def test_work_that_is_read_before_it_is_done_is_reported():
    @jit_kernel(A="f16[32, 32]", C="f32[32, 32]", out_idx=[-1], threads=128)
    def product(A, C, wait):
        s = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float32")
        T.copy(A, s)
        T.wgmma_gemm(s, s, acc, clear_accum=True)
        if wait:
            T.wait_wgmma(0)
        T.copy(acc, C)

    a = torch.randn(32, 32).half()
    torch.testing.assert_close(product(True)(a), a.float() @ a.float(), rtol=1e-4, atol=1e-4)
    with (
        scheduled(),
        pytest.raises(RaceError, match=r"race on acc: threads 0\.\.127 read .*T\.wait_wgmma\(0\)"),
    ):
        product(False)(a)


def sums_of_products(left_out, **options):
    """Two products of tiles that the threads write, ordered by barriers of the kernel alone.

    `left_out` is the barrier "before" a product or "after" it, or both are made by an "mbarrier".
    """

    @jit_kernel(A="f16[2, 64, 64]", C="f32[64, 64]", out_idx=[-1], threads=128, **options)
    def product(A, C):
        x = T.alloc_fragment((64, 64), "float16")
        s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        written = T.alloc_barrier(128)
        T.clear(acc)
        for step in T.serial(2):
            T.copy(A[step, :, :], x)
            T.copy(x, s)
            T.fence_proxy_async()
            if left_out == "mbarrier":
                T.mbarrier_arrive(written)
                T.mbarrier_wait_parity(written, step)
            elif left_out != "before":
                T.sync_threads()
            T.wgmma_gemm(s, s, acc)
            T.wait_wgmma(0)
            if left_out != "after":
                T.sync_threads()
        T.copy(acc, C)

    return product()


WITHOUT_BARRIERS = {"tl.disable_thread_storage_sync": True, "tl.disable_warp_specialized": True}


@pytest.mark.parametrize("left_out", ["", "mbarrier"])
def test_barriers_of_the_kernel_order_its_threads_where_tilelang_adds_none(left_out):
    a = torch.randint(-2, 3, (2, 64, 64)).half()
    with scheduled():
        c = sums_of_products(left_out, pass_configs=WITHOUT_BARRIERS)(a)
    assert torch.equal(c, sum(x.float() @ x.float() for x in a))


@pytest.mark.parametrize(
    ("left_out", "remedy"),
    [
        ("before", r"wgmma .* reads s.*; T\.sync_threads\(ID, COUNT\) of threads 0\.\.127"),
        ("after", r"threads 0\.\.127 write s.*; T\.wait_wgmma\(0\), then T\.sync_threads"),
    ],
)
def test_a_missing_barrier_of_the_kernel_is_a_race_where_tilelang_adds_none(left_out, remedy):
    a = torch.randn(2, 64, 64).half()
    with scheduled():
        sums_of_products(left_out)(a)  # TileLang adds it
        with pytest.raises(RaceError, match=f"(?s){remedy}"):
            sums_of_products(left_out, pass_configs=WITHOUT_BARRIERS)(a)


@jit_kernel(Y="f32[64, 32]", threads=256)
def added_by_another_role(Y, fence=True):
    """Tiles that one role writes and another adds to Y by TMA."""
    s = T.alloc_shared((64, 32), "float32")
    full, empty = T.alloc_barrier(128), T.alloc_barrier(128)
    if T.get_thread_binding() < 128:
        for step in T.serial(3):
            T.mbarrier_wait_parity(empty, (step + 1) % 2)
            for i, j in T.Parallel(64, 32):
                s[i, j] = step + 1
            if fence:
                T.fence_proxy_async()
            T.mbarrier_arrive(full)
    else:
        for step in T.serial(3):
            T.mbarrier_wait_parity(full, step % 2)
            T.atomic_add(Y, s, use_tma=True)
            T.mbarrier_arrive(empty)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tile_that_another_role_adds_by_tma_is_right(schedule):
    y = torch.zeros(64, 32)
    with scheduled(schedule):
        added_by_another_role()(y)
    assert (y == 6).all()


def test_a_tile_that_another_role_adds_by_tma_needs_a_fence():
    words = r"reads s.* after threads 0\.\.127 write it, with no T\.fence_proxy_async"
    with scheduled(), pytest.raises(RaceError, match=words):
        added_by_another_role(fence=False)(torch.zeros(64, 32))


def copied_by_two_roles(**options):
    """The branches of two roles follow each other, as `T.ws` writes them."""

    @jit_kernel(X="f32[3, 64, 32]", Y="f32[3, 64, 32]", threads=256, **options)
    def copied(X, Y):
        s = T.alloc_shared((64, 32), "float32")
        full, empty = T.alloc_barrier(128), T.alloc_barrier(128)
        with T.ws(1):
            for step in T.serial(3):
                T.mbarrier_wait_parity(empty, (step + 1) % 2)
                T.tma_copy(X[step, :, :], s, barrier=full)
                T.mbarrier_arrive(full)
        with T.ws(0):
            for step in T.serial(3):
                T.mbarrier_wait_parity(full, step % 2)
                T.copy(s, Y[step, :, :])
                T.mbarrier_arrive(empty)

    return copied()


def test_a_barrier_of_tilelang_between_the_loops_of_two_roles_is_a_deadlock():
    """It is one of all threads, before the second branch: `thread_storage_sync.cc`."""
    with pytest.raises(DeadlockError) as caught:
        copied_by_two_roles()(torch.zeros(3, 64, 32), torch.zeros(3, 64, 32))
    text = str(caught.value)
    assert "the barrier that TileLang puts between accesses to shared memory" in text
    assert "branches of one if and else have none between them" in text


def test_roles_whose_barriers_are_their_own_copy_side_by_side():
    x, y = torch.randn(3, 64, 32), torch.zeros(3, 64, 32)
    copied_by_two_roles(pass_configs=WITHOUT_BARRIERS)(x, y)
    assert torch.equal(x, y)


@pytest.mark.parametrize("wait", [False, True])
def test_a_store_that_may_still_read_names_its_wait(wait):
    @jit_kernel(out_idx=[-1], threads=128)
    def stored(Y: T.Tensor((2, 64, 32), "float16")):
        s = T.alloc_shared((64, 32), "float16")
        for k in T.serial(2):
            for i, j in T.Parallel(64, 32):
                s[i, j] = k
            T.fence_proxy_async()
            T.sync_threads()
            T.tma_copy(s, Y[k, :, :])
            if wait:
                T.tma_store_arrive()
                T.tma_store_wait()
        if not wait:
            T.tma_store_arrive()
            T.tma_store_wait()

    with interpret(sanitize="races", on_report="keep") as run:
        stored()()
    assert bool(run.reports) is not wait
    for report in run.reports:
        assert report.message == (
            "threads 0..127 write s[0:64, 0:32], and nothing orders this after the TMA store "
            "issued by threads 0..127 reads it"
        )
        assert report.hint == "wait until the TMA store has read its source: T.tma_store_wait()"
        assert report.other.by == "the TMA store issued by threads 0..127"


@jit_kernel(X="f16[3, 128]", Y="f16[3, 128]", out_idx=[-1], threads=64)
def waits_for_too_few(X, Y, left):
    s = T.alloc_shared((3, 128), "float16")
    for row in T.unroll(3):
        T.async_copy(X[row, :], s[row, :])
    T.ptx_wait_group(left)
    T.sync_threads()
    T.copy(s[0, :], Y[0, :])
    T.ptx_wait_group(0)
    T.sync_threads()
    T.copy(s[1:3, :], Y[1:3, :])


def test_the_hint_counts_the_groups_that_may_be_in_flight():
    with interpret(sanitize="races", on_report="keep") as run:
        waits_for_too_few(2)(torch.zeros(3, 128).half())
    assert run.reports == []
    with interpret(sanitize="races", on_report="keep") as run:
        waits_for_too_few(3)(torch.zeros(3, 128).half())
    (report,) = run.reports
    assert report.hint == (
        "wait until the cp.async is done: T.ptx_wait_group(2) (or fewer: 2 groups were committed "
        "after its own)"
    )
