"""Synchronization that is deleted from lowered kernels is reported."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import tilelang.language as T
import torch
from scaled_products import scaled_products

from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError, Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform
from tlmatrix.interpreter.lowered.emit import Emitter
from tlmatrix.interpreter.lowered.execution import run
from tlmatrix.interpreter.lowered.lowering import HANDLERS, LoweredKernel, lower, parsed
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import DEFAULT_SANITIZERS, ReportSet

SYNC, WAIT_GROUP = "tirx.tvm_storage_sync", "tirx.ptx_wait_group"
ARRIVAL = "tl.ptx_cp_async_barrier_noinc"
NOTHING = ir.IntImm("int32", 0)


def gemm(m, n, k, stages, threads=128, *, producer=False):
    """`C = A @ B` of one block; the threads of a `producer` of its own all arrive."""

    @T.prim_func
    def kernel(
        A: T.Tensor((m, 4 * k), "float16"),
        B: T.Tensor((4 * k, n), "float16"),
        C: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), "float16")
            b = T.alloc_shared((k, n), "float16")
            c = T.alloc_fragment((m, n), "float32")
            out = T.alloc_shared((m, n), "float16")
            T.clear(c)
            for step in T.Pipelined(4, num_stages=stages):
                if producer:
                    T.ptx_commit_group()
                T.copy(A[0, step * k], a)
                T.copy(B[step * k, 0], b)
                T.gemm(a, b, c)
            T.copy(c, out)
            T.copy(out, C)

    return kernel


def from_registers():
    """`C = 2 * A @ B`, the first factor in registers."""

    @T.prim_func
    def kernel(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            twice = T.alloc_fragment((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(a, twice)
            for i, j in T.Parallel(64, 64):
                twice[i, j] = twice[i, j] * 2
            T.gemm(twice, b, c, clear_accum=True)
            T.copy(c, C)

    return kernel


def reversed_rows(threads):
    """Rows in reverse order, in shared memory and back."""

    @T.prim_func
    def kernel(A: T.Tensor((threads * 4,), "float32"), C: T.Tensor((threads * 4,), "float32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((threads * 4,), "float32")
            T.copy(A, a)
            for i in T.Parallel(threads * 4):
                C[i] = a[threads * 4 - 1 - i]

    return kernel


def one_tile(blocks):
    """Each block stores its tile; all of them to one place if there is one tile."""

    @T.prim_func
    def kernel(A: T.Tensor((2 * 64, 64), "float16"), C: T.Tensor((blocks * 64, 64), "float16")):
        with T.Kernel(2, threads=128) as block:
            a = T.alloc_shared((64, 64), "float16")
            T.copy(A[block * 64, 0], a)
            T.copy(a, C[block % blocks * 64, 0])

    return kernel


KERNELS = {
    "copies": (
        lambda: scaled_products.get_tir("before"),
        "sm_90a",
        ((256, 64), (64, 64), (256,)),
        (256, 64),
    ),
    "gemm sm_80": (lambda: gemm(32, 16, 32, 2, 32), "sm_80", ((32, 128), (128, 16)), (32, 16)),
    "gemm sm_90a": (
        lambda: gemm(64, 64, 64, 2, producer=True),
        "sm_90a",
        ((64, 256), (256, 64)),
        (64, 64),
    ),
    "registers": (from_registers, "sm_90a", ((64, 64), (64, 64)), (64, 64)),
    "two tiles": (lambda: one_tile(2), "sm_90a", ((128, 64),), (128, 64)),
    "reversed": (lambda: reversed_rows(32), "sm_80", ((128,),), (128,)),
}
WRONG = {"one tile": (lambda: one_tile(1), "sm_90a", ((128, 64),), (64, 64))}


@dataclass(frozen=True)
class Code:
    """A lowered kernel, and an argument for each parameter."""

    kernel: ir.Kernel
    steps: tuple[Any, ...]
    functions: tuple[ir.Kernel, ...]
    values: tuple[torch.Tensor, ...]


@cache
def code(name):
    make, arch, inputs, out = (KERNELS | WRONG)[name]
    func = make()
    kernel, steps, functions = parsed(lower(func, arch, {}))
    torch.manual_seed(0)
    dtypes = [getattr(torch, str(func.buffer_map[p].dtype)) for p in func.params]
    values = [torch.randn(shape) for shape in inputs] + [torch.zeros(out)]
    return Code(
        kernel, steps, tuple(functions), tuple(v.to(d) for v, d in zip(values, dtypes, strict=True))
    )


def reports(found):
    """What the sanitizers report of a lowered kernel."""
    programs = {f.name: Emitter(f, HANDLERS).program() for f in found.functions}
    lowered = LoweredKernel(found.kernel, found.steps, programs)
    noted = ReportSet()
    values = [value.clone() for value in found.values]
    run(lowered, values, Watching(DEFAULT_SANITIZERS, noted, "kernel"))
    return [f"{each.sanitizer}: {each.message}" for each in noted.reports()]


def without(found, op, number):
    """A kernel without the call of an operation that has a number among those of its name."""
    count = -1

    def rewrite(node):
        nonlocal count
        if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
            count += node.value.op == op
            if node.value.op == op and count == number:
                return replace(node, value=NOTHING)
        return None

    functions = tuple(replace(f, body=transform(f.body, rewrite)) for f in found.functions)
    assert count >= number
    return replace(found, functions=functions)


def test_bulk_stores_of_two_blocks_to_one_tile_are_a_race():
    found = reports(code("one tile"))
    assert any(each.startswith("races: write of C[0, 0]") for each in found), found


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_as_it_is_lowered_has_no_report(name):
    assert reports(code(name)) == []


@pytest.mark.parametrize(
    ("name", "op", "number", "expected"),
    [
        # A block of one warp: each lane waits for its own copies alone.
        ("gemm sm_80", SYNC, 1, "nothing orders with a write by cp.async"),
        ("gemm sm_80", WAIT_GROUP, 0, "nothing orders with a write by cp.async"),
        ("gemm sm_80", "tirx.ptx_commit_group", 0, "nothing orders with a write by cp.async"),
        ("reversed", SYNC, 0, "read of a[127] by thread 0, which nothing orders with a write"),
        ("gemm sm_90a", SYNC, 0, "which nothing orders with its initialization"),
        ("gemm sm_90a", "tl.warpgroup_arrive", 0, "there is no wgmma fence"),
        ("gemm sm_90a", "tl.fence_proxy_async", 0, "read without a proxy fence"),
        ("gemm sm_90a", "tl.tma_store_wait", 0, "after its block has ended"),
        ("gemm sm_90a", "tl.tma_store_arrive", 0, "after its block has ended"),
        ("gemm sm_90a", "tl.mbarrier_wait_parity", 0, "write of a[0] by thread 0, which nothing"),
        ("registers", "tl.warpgroup_arrive", 0, "use by wgmma of"),
        ("registers", "tl.warpgroup_wait", 0, "a wgmma: it has not been waited for"),
        ("registers", "tl.warpgroup_commit_batch", 0, "a wgmma: it has not been waited for"),
    ],
)
def test_a_deletion_is_reported(name, op, number, expected):
    found = reports(without(code(name), op, number))
    assert any(expected in each for each in found), found


@pytest.mark.parametrize("op", ["tl.mbarrier_expect_tx", "tirx.ptx_arrive_barrier"])
def test_a_kernel_without_part_of_a_handshake_cannot_go_on(op):
    with pytest.raises(DeadlockError):
        assert reports(without(code("gemm sm_90a"), op, 0)) == []


def test_a_kernel_without_the_arrival_of_its_copies_cannot_go_on():
    with pytest.raises(DeadlockError):
        reports(without(code("copies"), ARRIVAL, 0))


def test_an_arrival_that_does_not_wait_for_copies_is_reported():
    found = code("copies")

    def rewrite(node):
        if isinstance(node, ir.Call) and node.op == ARRIVAL:
            return replace(node, op="tirx.ptx_arrive_barrier")
        return None

    functions = tuple(replace(f, body=transform(f.body, rewrite)) for f in found.functions)
    reported = reports(replace(found, functions=functions))
    assert any("nothing orders with a write by cp.async" in each for each in reported), reported


def test_an_mbarrier_that_is_not_initialized_is_refused():
    with pytest.raises(SynchronizationError, match="before its initialization"):
        reports(without(code("gemm sm_90a"), "tirx.ptx_init_barrier_thread_count", 0))


def wider(found, op):
    """A kernel with one vector of twice as many elements."""

    def rewrite(node):
        if op and isinstance(node, ir.Call) and node.op == op:
            count = node.args[2]
            return replace(node, args=(*node.args[:2], replace(count, value=2 * count.value)))
        if not op and isinstance(node, ir.Ramp):
            return replace(node, lanes=2 * node.lanes)
        return None

    functions = tuple(replace(f, body=transform(f.body, rewrite)) for f in found.functions)
    return replace(found, functions=functions)


def test_a_cp_async_of_32_bytes_is_refused():
    with pytest.raises(Unsupported, match=r"cp\.async of 32 bytes"):
        reports(wider(code("gemm sm_80"), "tl.ptx_cp_async"))


def test_a_vector_past_the_end_of_local_memory_is_reported():
    found = reports(wider(code("gemm sm_80"), ""))
    assert any(each.startswith("bounds: access of") for each in found), found
