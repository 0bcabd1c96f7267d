"""`setmaxnreg`: all warps of a warp group execute it, and there are 65,536 registers."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(X="i32[1]", Y="i32[1]", threads=256, pass_configs={"tl.disable_warp_specialized": True})
def roles(X, Y, where):
    """Threads 128 to 159 load, threads 0 to 127 store, and the others do nothing."""
    thread = T.get_thread_binding()
    slot = T.alloc_shared((1,), "int32")
    full = T.alloc_barrier(32)
    if thread < 128:
        T.inc_max_nreg(240)
        T.mbarrier_wait_parity(full, 0)
        if thread == 0:
            Y[0] = slot[0]
    else:
        if where == "before":
            T.dec_max_nreg(24)
        if thread < 160:
            if where != "before":
                T.dec_max_nreg(24)
            if thread == 128:
                slot[0] = X[0]
            T.mbarrier_arrive(full)
        elif where in ("each", "other count"):
            T.dec_max_nreg(24 if where == "each" else 40)


@pytest.mark.parametrize("level", ["source", "lowered"])
@pytest.mark.parametrize(
    ("where", "reported"),
    [("before", False), ("each", False), ("other count", True), ("one", True)],
)
def test_registers_that_a_part_of_a_warp_group_changes_are_reported(where, reported, level):
    """In a branch of each of its warps as well: kernels of the field have that."""
    X, Y = torch.tensor([7], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    watched, lowered = {"barriers", "races"}, level == "lowered"
    with interpret(arch="sm_90a", lowered=lowered, sanitize=watched, on_report="keep") as run:
        roles(where)(X, Y)
    assert Y.tolist() == [7]
    words = "set the registers of the warp group of threads 128..255; its other warps do not"
    assert [words in report.message for report in run.reports] == [True] * reported


@jit_kernel(
    X="i32[384]", Y="i32[384]", threads=384, pass_configs={"tl.disable_warp_specialized": True}
)
def groups(X, Y, count):
    """Three warp groups copy, of which two have `count` registers a thread and one has 80."""
    thread = T.get_thread_binding()
    if thread < 256:
        T.inc_max_nreg(count)
        T.sync_threads(1, 256)
        Y[thread] = X[thread]
    else:
        T.dec_max_nreg(80)
        T.sync_threads(2, 128)
        Y[thread] = X[thread]


@pytest.mark.parametrize("level", ["source", "lowered"])
@pytest.mark.parametrize(("count", "total"), [(216, None), (224, 67584)])
def test_more_registers_than_a_multiprocessor_has_are_reported(count, total, level):
    X, Y = torch.arange(384, dtype=torch.int32), torch.zeros(384, dtype=torch.int32)
    watched, lowered = {"barriers", "races"}, level == "lowered"
    with interpret(arch="sm_90a", lowered=lowered, sanitize=watched, on_report="keep") as run:
        groups(count)(X, Y)
    assert torch.equal(X, Y)
    words = f"the warp groups of a block want {total} registers in all"
    assert [words in report.message for report in run.reports] == [True] * (total is not None)
