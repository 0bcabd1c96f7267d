"""Blocks that add by atomics, and those with warp roles, run in an order of the schedule's seed."""

import textwrap

import pytest
import tilelang.language as T
import torch

import tlmatrix
from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret, scheduled
from tlmatrix.interpreter.sync.settings import blocks_in_order

PARTS = [1e8, 1.0, -1e8, 3.0]


@jit_kernel(X="dtype[4]", Y="dtype[8]")
def summed(X, Y, dtype):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(8):
            T.atomic_add(Y[i], X[bx])


def total(seed, dtype="float32"):
    parts, out = torch.tensor(PARTS).to(getattr(torch, dtype)), torch.zeros(8)
    out = out.to(parts.dtype)
    with interpret(), scheduled(seed=seed):
        summed(dtype)(parts, out)
    return out[0].item()


def test_the_seed_selects_the_order_of_blocks():
    assert total(0) == 3.0  # 1 is lost in 1e8
    assert total(1) == 0.0  # 3 and -1e8 first
    totals = [total(seed) for seed in range(0, 40, 2)]
    assert len(set(totals)) > 2
    assert totals == [total(seed) for seed in range(0, 40, 2)]


def test_blocks_keep_their_order_where_that_is_needed():
    with blocks_in_order():
        assert total(1) == total(0)
    assert {total(seed, "int32") for seed in range(4)} == {4}


CODE = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def kernel(rows):
    @T.prim_func
    def main(X: T.Tensor((rows, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(rows, threads=32) as bx:
            for i in T.Parallel(8):
                T.atomic_add(Y[i], X[bx, i])

    return main

def total(x):
    y = torch.zeros(8)
    kernel(len(x))(x, y)
    return y

def reference(x):
    return x.sum(0)
"""
SPEC = """
name: total
problem:
  inputs: {x: {shape: [rows, 8], dtype: float32, grad: false}}
  outputs: [y]
  reference: MODULE:reference
entry: MODULE:total
returns: [y]
axes: {rows: [9], values: [normal]}
checks: [numeric, determinism]
DETERMINISM
"""


@pytest.mark.parametrize("mode", ["bitwise", "bounded"])
def test_sums_that_depend_on_the_order_are_found(tmp_path, monkeypatch, mode):
    module = f"total_{mode}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(CODE))
    rule = f"determinism: [{{when: rows > 0, mode: {mode}}}]"
    path = tmp_path / "total.yaml"
    path.write_text(SPEC.replace("MODULE", module).replace("DETERMINISM", rule))
    monkeypatch.syspath_prepend(str(tmp_path))
    (result,) = tlmatrix.run_specs(path, backend="interpreter").results
    assert [finding.check for finding in result.findings] == ["determinism"] * (mode == "bitwise")


@jit_kernel(X="i32[4]", Seen="i32[4]")
def passed_down(X, Seen, waits):
    """Thread 0 of each block reads what the block before it wrote; the first reads nothing."""
    with T.Kernel(4, threads=64) as bx:
        if T.get_thread_binding() == 0:
            flag = T.alloc_var("int32", init=1)
            if bx > 0:
                flag = T.atomic_load(X[bx - 1], memory_order="acquire")
                while waits and flag == 0:
                    flag = T.atomic_load(X[bx - 1], memory_order="acquire")
            Seen[bx] = flag
            T.atomic_store(X[bx], 1, memory_order="release")


def test_blocks_with_roles_start_in_descending_order_with_an_odd_seed():
    def seen(seed, *, waits):
        x, out = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
        with interpret(), scheduled(seed=seed):
            passed_down(waits)(x, out)
        return out.tolist()

    assert seen(0, waits=False) == [1, 1, 1, 1]
    assert seen(1, waits=False) == [1, 0, 0, 0]
    assert seen(1, waits=True) == [1, 1, 1, 1]
    with blocks_in_order():
        assert seen(1, waits=False) == [1, 1, 1, 1]
