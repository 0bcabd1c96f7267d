"""Signed integer arithmetic that leaves its dtype, and offsets past 2^31 elements."""

import pytest
import tilelang
import tilelang.language as T
import torch

import tlmatrix
from jit_kernel import jit_kernel

LARGEST = 2**31 - 1


@jit_kernel(X="f32[n]", Y="f32[n]", window="i32")
def banded(X, Y, window):
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        end = T.min(n, bx * 64 + window)
        for i in T.Parallel(64):
            if bx * 64 + i < end:
                Y[bx * 64 + i] = X[bx * 64 + i]


@jit_kernel(X="f32[n]", Y="f32[n]", first="i32")
def masked(X, Y, first):
    n = X.shape[0]
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            if T.And(T.And(i < n, X[T.min(i, n - 1)] > 0), first + i > 0):
                Y[i] = X[i]


def _reports(factory, *arguments, **options):
    with tlmatrix.interpret(sanitize="overflow", on_report="keep") as run:
        factory(**options)(*arguments)
    return [str(report) for report in run.reports]


@pytest.mark.parametrize(("window", "found"), [(LARGEST, 1), (LARGEST - 128, 0), (1, 0)])
def test_a_window_that_overflows_when_added_to_a_position_is_reported(window, found):
    x = torch.ones(130)
    reports = _reports(banded, x, torch.zeros(130), window)
    assert len(reports) == found
    for report in reports:
        assert f"int32 arithmetic gives {64 + window}, outside its range" in report
        assert "test_overflow.py:18" in report


def test_iterations_of_a_parallel_loop_count_only_where_they_are_active():
    x = torch.ones(64)
    assert _reports(masked, x, torch.zeros(64), LARGEST - 63) == []
    (report,) = _reports(masked, x, torch.zeros(64), LARGEST - 62)
    assert "gives 2147483648" in report
    x[63] = 0
    assert _reports(masked, x, torch.zeros(64), LARGEST - 62) == []


@tilelang.jit
def rows_at_offsets(kind):
    rows, elements = T.dynamic("rows"), T.dynamic("elements", "int64")

    @T.prim_func
    def main(
        X: T.Tensor((elements,), "int8"),
        first: T.Tensor((rows,), "int32"),
        Y: T.Tensor((rows, 32), "int8"),
    ):
        with T.Kernel(rows, threads=32) as bx:
            if kind == "named":
                offset = first[bx] * 128
                for i in T.Parallel(32):
                    Y[bx, i] = X[offset + i]
            elif kind == "cast":
                wide = T.cast(first[bx], "int64") * 128
                for i in T.Parallel(32):
                    Y[bx, i] = X[wide + i]
            elif kind == "index":
                for i in T.Parallel(32):
                    Y[bx, i] = X[first[bx] * 128 + i]
            elif kind == "gather":
                for i in T.Parallel(32):
                    Y[bx, i] = X[first[i // 16] * 128 + i]
            else:
                T.copy(X[first[bx] * 128 : first[bx] * 128 + 32], Y[bx, :])

    return main


@pytest.mark.parametrize("kind", ["named", "cast", "index", "gather", "copy"])
def test_an_offset_past_int32_is_computed_as_the_variable_that_holds_it(kind):
    """The pages of the tensor that nothing touches take no memory."""
    x = torch.empty(2**31 + 4096, dtype=torch.int8)
    x[2**31 : 2**31 + 32] = torch.arange(32)
    y = torch.zeros(2, 32, dtype=torch.int8)
    first = torch.tensor([2**24, 2**24], dtype=torch.int32)
    reports = _reports(rows_at_offsets, x, first, y, kind=kind)
    if kind == "named":
        assert "int32 arithmetic gives 2147483648" in reports[0]
    else:
        assert reports == []
        assert torch.equal(y[1], torch.arange(32, dtype=torch.int8))


@jit_kernel(X="f32[64]", Y="f32[64]", n="i32", m="i32", threads=64)
def shortened(X, Y, n, m):
    for i in T.Parallel(64):
        if i < n + m:
            Y[i] = X[i]


def test_a_mask_kept_from_an_earlier_launch_hides_no_overflow():
    arguments = torch.ones(64), torch.zeros(64), LARGEST, 5
    for _ in range(2):
        (report,) = _reports(shortened, *arguments)
        assert f"int32 arithmetic gives {LARGEST + 5}, outside its range" in report
    assert not arguments[1].any()
