"""Reads whose values nothing uses are no findings; those beside them that something uses are."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


def reports_of(factory, arguments, inputs):
    with interpret(sanitize=True) as run:
        outputs = factory(*arguments)(inputs)
    return outputs, {(r.sanitizer, r.buffer) for r in run.reports}


@jit_kernel(X="f32[32, 4]", Y="f32[32]", out_idx=[1], threads=32)
def running_maximum(X, Y, first):
    t = T.get_thread_binding(0)
    own = T.alloc_local((4,), "float32")
    for k in T.unroll(4):
        own[k] = X[t, k]
        if k >= first and own[k - 1] > own[k]:
            own[k] = own[k - 1]
    Y[t] = own[3]


def test_the_second_operand_of_and_is_not_read_where_the_first_does_not_hold():
    x = torch.randn(32, 4)
    y, found = reports_of(running_maximum, (1,), x)
    assert torch.equal(y, x.amax(1))
    assert found == set()
    assert reports_of(running_maximum, (0,), x)[1] == {("fragments", "own")}


@jit_kernel(out_idx=[1], threads=32)
def differs_from_the_one_before(X: T.Tensor((32, 4), "float32"), Y: T.Tensor((32,), "int32")):
    t = T.get_thread_binding(0)
    own = T.alloc_local((4,), "float32")
    count = T.alloc_var("int32", init=0)
    for k in T.unroll(4):
        own[k] = X[t, k]
        if k == 0 or own[k - 1] != own[k]:
            count = count + 1
    Y[t] = count


def test_the_second_operand_of_or_is_not_read_where_the_first_holds():
    x = torch.randint(0, 2, (32, 4)).float()
    y, found = reports_of(differs_from_the_one_before, (), x)
    assert torch.equal(y.long(), 1 + (x[:, 1:] != x[:, :-1]).sum(1))
    assert found == set()


@jit_kernel(X="f32[n, 20]", Y="f32[n, 20]", out_idx=[1])
def rows_of_padded_tiles(X, Y, written):
    n = X.shape[0]
    with T.Kernel(n, threads=32) as row:
        tile = T.alloc_fragment((32,), "float32")
        T.copy(X[row, 0:written], tile[0:written])
        for i in T.Parallel(32):
            Y[row, i] = tile[i] * 2.0


def test_lanes_whose_store_is_skipped_read_nothing_that_matters():
    x = torch.randn(3, 20)
    y, found = reports_of(rows_of_padded_tiles, (20,), x)
    assert torch.equal(y, x * 2)
    assert found == set()
    assert reports_of(rows_of_padded_tiles, (19,), x)[1] == {("uninitialised", "tile")}


# Some lanes load a number, and every lane takes those of the first four.
@jit_kernel(X="f32[32]", Y="f32[32]", out_idx=[1], threads=32)
def handed_round(X, Y, known):
    t = T.get_thread_binding(0)
    mine = T.alloc_var("float32")
    total = T.alloc_var("float32", init=0.0)
    if t < known:
        mine = X[t]
    for k in T.serial(4):
        total = total + T.shfl_sync(mine, k)
    Y[t] = total


@pytest.mark.parametrize(("known", "expected"), [(4, set()), (3, {("uninitialised", "mine")})])
def test_a_shuffle_reads_the_lanes_that_it_takes_from(known, expected):
    x = torch.randn(32)
    y, found = reports_of(handed_round, (known,), x)
    assert found == expected
    if not expected:
        torch.testing.assert_close(y, x[:4].sum().expand(32))
