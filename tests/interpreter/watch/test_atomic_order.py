"""The sanitizer `atomics`: sums of floats whose order no program decides."""

from functools import partial

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


# Blocks add rows of 32; with `shared_columns` all to one row, else to their own.
@jit_kernel(X="dtype[4, 32]", Y="dtype[4, 32]")
def summed(X, Y, shared_columns, tile=False, dtype="float32", kind="add"):
    with T.Kernel(4, threads=32) as block:
        f = T.alloc_fragment((1, 32), dtype)
        T.copy(X[block : block + 1, 0:32], f)
        row = 0 if shared_columns else block
        if tile:
            T.atomic_add(Y[row, 0], f)
        elif kind == "max":
            for j in T.Parallel(32):
                T.atomic_max(Y[row, j], f[0, j])
        else:
            for j in T.Parallel(32):
                T.atomic_add(Y[row, j], f[0, j])


# Threads of one block add the elements of a row to one, or one thread each of 32 rows.
@jit_kernel(X="f32[32, 32]", Y="f32[32]", threads=32)
def rows_summed(X, Y, split):
    if split:
        for i, j in T.Parallel(32, 32):
            T.atomic_add(Y[i], X[i, j])
    else:
        for j in T.serial(32):
            for i in T.Parallel(32):
                T.atomic_add(Y[i], X[i, j])


def reports_of(factory, x, y, sanitize="atomics"):
    with interpret(sanitize=sanitize) as run:
        factory()(x, y)
    return run.reports


@pytest.mark.parametrize("tile", [False, True])
def test_blocks_that_add_to_one_element(tile):
    x, y = torch.ones(4, 32), torch.zeros(4, 32)
    (report,) = reports_of(partial(summed, True, tile), x, y)
    assert report.message.startswith("two blocks add to Y[0, 0], in any order")
    assert (report.block, report.other.block, report.count) == ((1,), (0,), 3)
    assert y[0].eq(4).all()
    assert not reports_of(partial(summed, False, tile), x, y)


def test_threads_that_add_to_one_element():
    x = torch.ones(32, 32)
    (report,) = reports_of(partial(rows_summed, True), x, torch.zeros(32))
    assert report.message == "two threads of a block add to Y[0], in any order"
    assert not reports_of(partial(rows_summed, False), x, torch.zeros(32))


def test_sums_of_integers_and_the_largest_are_the_same_in_any_order():
    x = torch.ones(4, 32)
    assert not reports_of(partial(summed, True, kind="max"), x, torch.zeros(4, 32))
    x = x.int()
    assert not reports_of(partial(summed, True, dtype="int32"), x, torch.zeros(4, 32).int())


def test_only_a_demand_turns_it_on():
    x, y = torch.ones(4, 32), torch.zeros(4, 32)
    assert not reports_of(partial(summed, True), x, y, sanitize=True)


# All threads of all blocks add one to an element.
@jit_kernel(Y="dtype[2]")
def counted(Y, dtype):
    with T.Kernel(4, threads=32):
        for j in T.Parallel(32):
            T.atomic_add(Y[j % 2], T.cast(1, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_additions_of_one_constant_may_come_in_any_order(dtype):
    y = torch.zeros(2, dtype=getattr(torch, dtype))
    with interpret(sanitize="atomics") as run:
        counted(dtype)(y)
    assert run.reports == []
    assert y.eq(64).all()
