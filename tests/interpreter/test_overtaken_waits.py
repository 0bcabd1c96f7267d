"""Waits for a phase of an mbarrier that the next phase may overtake, and which then never end."""

from pathlib import Path

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.errors import DeadlockError


def overtaken(factory, *arguments, lowered=True):
    """Which waits may last for ever, by the threads that reports name."""
    watched = {"barriers", "races"}
    with interpret(arch="sm_90a", lowered=lowered, sanitize=watched, on_report="keep") as run:
        factory()(*arguments)
    assert {report.sanitizer for report in run.reports} <= {"barriers"}
    return [report.message.split(" for ")[0] for report in run.reports]


@jit_kernel(A="f16[64, 128]", B="f16[128, 64]", C="f32[64, 64]", threads=128)
def pipelined(A, B, C, first):
    a = T.alloc_shared((64, 32), "float16")
    b = T.alloc_shared((32, 64), "float16")
    c = T.alloc_fragment((64, 64), "float32")
    T.clear(c)
    for k in T.Pipelined(4, num_stages=2):
        if first == "commit":
            T.ptx_commit_group()
        T.copy(A[0, k * 32], a)
        T.copy(B[k * 32, 0], b)
        T.gemm(a, b, c)
    T.copy(c, C)


@pytest.mark.parametrize(("first", "reported"), [("copy", True), ("commit", False)])
def test_a_producer_of_which_one_thread_arrives_is_reported(first, reported):
    A, B, C = torch.randn(64, 128).half(), torch.randn(128, 64).half(), torch.zeros(64, 64)
    found = overtaken(lambda: pipelined(first), A, B, C)
    assert found == ["the wait of thread 32"] * reported
    assert torch.allclose(C, A.float() @ B.float(), atol=1e-3)


@jit_kernel(
    X="i32[4]", Y="i32[4]", threads=128, pass_configs={"tl.disable_thread_storage_sync": True}
)
def ring(X, Y, steps, arrival):
    """Threads 0 to 63 pass numbers to the others through a buffer of one."""
    thread = T.get_thread_binding()
    slot = T.alloc_shared((1,), "int32")
    full = T.alloc_barrier({"all": 64, "each warp": 2}.get(arrival, 1))
    free = T.alloc_barrier(64)
    if thread < 64:
        for k in T.serial(steps):
            T.mbarrier_wait_parity(free, (k + 1) % 2)
            if arrival == "ordered":
                T.sync_threads(3, 64)
            if thread == 0:
                slot[0] = X[k]
            if arrival == "each warp":
                T.sync_warp()
                if thread % 32 == 0:
                    T.mbarrier_arrive(full)
            elif arrival == "all" or thread == 0:
                T.mbarrier_arrive(full)
    else:
        for k in T.serial(steps):
            T.mbarrier_wait_parity(full, k % 2)
            if thread == 64:
                Y[k] = slot[0]
            T.mbarrier_arrive(free)


@pytest.mark.parametrize("level", ["source", "lowered"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(
    ("arrival", "reported"),
    [("one", True), ("each warp", False), ("all", False), ("ordered", False)],
)
def test_threads_that_wait_must_be_ordered_before_the_arrival_of_one(
    arrival, reported, steps, level
):
    X, Y = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    found = overtaken(lambda: ring(steps, arrival), X, Y, lowered=level == "lowered")
    behind = {"source": "the wait of threads 0..63", "lowered": "the wait of thread 32"}[level]
    assert found == [behind] * reported
    assert Y[:steps].tolist() == list(range(steps))


@jit_kernel(X="i32[8]", Y="i32[8]", threads=96)
def watched_by_two(X, Y, readers):
    """A warp passes numbers to a second one; a third counts them, and may not say so."""
    thread = T.get_thread_binding()
    slot = T.alloc_shared((1,), "int32")
    full = T.alloc_barrier(32)
    free = T.alloc_barrier(32 * readers)
    if thread < 32:
        for k in T.serial(8):
            T.mbarrier_wait_parity(free, (k + 1) % 2)
            if thread == 0:
                slot[0] = X[k]
            T.mbarrier_arrive(full)
    elif thread < 64:
        for k in T.serial(8):
            T.mbarrier_wait_parity(full, k % 2)
            if thread == 32:
                Y[k] = slot[0]
            T.mbarrier_arrive(free)
    else:
        for k in T.serial(8):
            T.mbarrier_wait_parity(full, k % 2)
            if readers == 2:
                T.mbarrier_arrive(free)


@pytest.mark.parametrize("lowered", [False, True])
def test_a_role_that_waits_and_says_so_is_not_overtaken(lowered):
    X, Y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    assert overtaken(lambda: watched_by_two(2), X, Y, lowered=lowered) == []


def test_a_role_that_waits_and_does_not_say_so_is_reported_or_hangs():
    X, Y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    assert overtaken(lambda: watched_by_two(1), X, Y) == ["the wait of thread 64"]
    with pytest.raises(DeadlockError, match=r"threads 64\.\.95 wait for parity 0 of full"):
        overtaken(lambda: watched_by_two(1), X, Y, lowered=False)


@pytest.mark.parametrize("lowered", [False, True])
def test_the_report_names_the_line_and_a_remedy(lowered):
    X, Y = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with interpret(arch="sm_90a", lowered=lowered, sanitize=True, on_report="keep") as run:
        ring(4, "one")(X, Y)
    (report,) = run.reports
    source = Path(__file__).read_text().split("\n")
    assert "mbarrier_wait_parity(free" in source[report.line - 1]
    assert "let all arrive" in report.hint
