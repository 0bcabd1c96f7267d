"""Integers that stay the same while a block runs are computed once, and mean what they meant."""

import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

CUTS = torch.tensor([0, 5, 5, 24], dtype=torch.int32)
UNGUARDED = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}


# Doubles each sequence; its boundaries stand in nine places.
@jit_kernel(X="f32[rows, 8]", cuts="i32[bounds]", Y="f32[rows, 8]")
def doubled(X, cuts, Y):
    bounds = cuts.shape[0]
    with T.Kernel(2, bounds - 1, threads=64) as (tile, b):
        if tile * 16 < cuts[b + 1] - cuts[b]:
            for i, j in T.Parallel(16, 8):
                if tile * 16 + i < cuts[b + 1] - cuts[b]:
                    Y[cuts[b] + tile * 16 + i, j] = 2 * X[cuts[b] + tile * 16 + i, j]


def doubles():
    x, y = torch.randn(24, 8), torch.full((24, 8), torch.nan)
    doubled()(x, CUTS, y)
    return x, y


def test_boundaries_read_before_the_rows_give_the_same_rows():
    with interpret():
        x, y = doubles()
    assert torch.equal(y, 2 * x)


def test_memory_that_the_kernel_writes_is_read_anew():
    @jit_kernel
    def counting(C: T.Tensor((4,), "int32"), Y: T.Tensor((4, 6), "int32")):
        with T.Kernel(4, threads=32) as b:
            for k in T.serial(6):
                Y[b, k] = C[b] + 1
                C[b] = C[b] + 1

    counts, y = torch.arange(4, dtype=torch.int32), torch.zeros(4, 6, dtype=torch.int32)
    with interpret():
        counting()(counts, y)
    assert y.tolist() == [[b + k + 1 for k in range(6)] for b in range(4)]
    assert counts.tolist() == [6, 7, 8, 9]


def test_each_of_two_grids_has_its_own():
    n = T.dynamic("n")

    @jit_kernel
    def twice(C: T.Tensor((n,), "int32"), Y: T.Tensor((n, 2), "int32")):
        with T.Kernel(n, threads=32) as b:
            Y[b, 0] = (C[b] + 7) // 2
        with T.Kernel(n, threads=32) as b:
            Y[b, 1] = (C[b] + 7) // 2 + C[n - 1 - b]

    counts, y = torch.tensor([3, -20, 9], dtype=torch.int32), torch.zeros(3, 2, dtype=torch.int32)
    with interpret():
        twice()(counts, y)
    half = torch.div(counts + 7, 2, rounding_mode="floor")
    assert torch.equal(y, torch.stack([half, half + counts.flip(0)], 1))


def some(**options):
    @jit_kernel(C="i32[n]", Y="i32[most]", **options)
    def some(C, Y):
        n, most = C.shape[0], Y.shape[0]
        with T.Kernel(most, threads=32) as b:
            if b < n and C[b] + C[b] > 0:
                Y[b] = C[b] + C[b]
            else:
                Y[b] = 0

    return some()


def test_what_nothing_guards_is_read_only_where_the_kernel_reads_it():
    counts, y = torch.tensor([1, 0, 3], dtype=torch.int32), torch.ones(5, dtype=torch.int32)
    with interpret():
        some(pass_configs=UNGUARDED)(counts, y)
    assert y.tolist() == [2, 0, 6, 0, 0]


def test_what_is_not_read_is_not_reported():
    blank = 0x5BADC0DF
    counts = torch.tensor([1, 4, 3, blank, blank], dtype=torch.int32)
    y = torch.zeros(5, dtype=torch.int32)
    with interpret(sanitize=True, poison={torch.int32: blank}) as run:
        some()(counts[:3], y)
    assert not run.reports
    with interpret(
        sanitize={"uninitialised"}, poison={torch.int32: blank}, on_report="keep"
    ) as run:
        some()(counts, y)
    assert {(report.buffer, report.index) for report in run.reports} == {("C", (3,))}
    assert run.reports[0].count == 2
