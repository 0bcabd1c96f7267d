"""Tensor memory that a block without warp roles frees at its end."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

BLOCK = 128


@jit_kernel(A="b16[BLOCK, 128]", B="b16[128, 64]", C="f32[BLOCK, 64]", out_idx=[-1], threads=128)
def product(A, B, C, end, shared):
    """C = A @ B of one block; all warps copy the sums out of tensor memory.

    `shared` is whether they pass through shared memory, `end` what the block ends with.
    """
    a = T.alloc_shared((BLOCK, 64), "bfloat16")
    b = T.alloc_shared((64, 64), "bfloat16")
    sums = T.alloc_tmem((BLOCK, 64), "float32")
    acc = T.alloc_fragment((BLOCK, 64), "float32")
    staged = T.alloc_shared((BLOCK, 64), "float32")
    done = T.alloc_barrier(1)
    for k in T.serial(2):
        T.copy(A[0, k * 64], a)
        T.copy(B[k * 64, 0], b)
        T.tcgen05_gemm(a, b, sums, mbar=done, clear_accum=k == 0)
        T.mbarrier_wait_parity(done, k % 2)
    T.copy(sums, acc)
    if shared:
        T.copy(acc, staged)
        T.copy(staged, C)
    else:
        T.copy(acc, C)
    if end == "barrier":
        T.sync_threads()
    elif end == "sum":
        total = T.alloc_fragment((64,), "float32")
        T.reduce_sum(acc, total, dim=0)
        for j in T.Parallel(64):
            C[0, j] = acc[0, j] + 0 * total[j]


def reports(end, *, shared):
    a, b = torch.randn(BLOCK, 128).bfloat16(), torch.randn(128, 64).bfloat16()
    with interpret(sanitize="races", arch="sm_100a", on_report="keep") as run:
        product(end, shared)(a, b)
    return run.reports


def test_a_block_without_roles_frees_tensor_memory_that_other_warps_copy():
    (report,) = reports("", shared=False)
    assert report.sanitizer == "races"
    assert report.buffer == "sums"
    assert "freed by the first warp at the end of the block" in report.message
    assert report.hint == "end the block with T.sync_threads()"
    assert report.file.endswith("test_tensor_memory.py")


@pytest.mark.parametrize(("end", "shared"), [("barrier", False), ("", True), ("sum", False)])
def test_a_barrier_of_the_source_or_of_tilelang_orders_the_copies(end, shared):
    assert reports(end, shared=shared) == []
