"""Parallel loops whose iterations read what other iterations of the loop write."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

N = 64


@jit_kernel(X="f32[N]", Y="f32[N]")
def kernel(X, Y, form, threads=128):
    with T.Kernel(1, threads=threads):
        s = T.alloc_shared((N,), "float32")
        two = T.alloc_shared((2, N), "float32")
        row = T.alloc_fragment((N,), "float32")
        T.copy(X, s)
        T.copy(X, two[0, :])
        if form == "scan":
            for k in T.serial(6):
                for i in T.Parallel(N):
                    if i >= (1 << k):
                        s[i] = s[i] + s[i - (1 << k)]
        if form == "scan that selects":
            for k in T.serial(6):
                for i in T.Parallel(N):
                    before = T.if_then_else(i >= (1 << k), s[T.max(i - (1 << k), 0)], 0.0)
                    s[i] = s[i] + before
        if form == "first element":
            for i in T.Parallel(N):
                s[i] = s[i] / s[0]
        if form == "global":
            for i in T.Parallel(N):
                X[i] = X[N - 1 - i] * 2.0
        if form == "two rounds of one warp":
            for i in T.Parallel(N):
                last = s[N - 1 - i]
                s[i] = last * 2.0
        if form == "scan in two buffers":
            for k in T.serial(6):
                for i in T.Parallel(N):
                    before = T.if_then_else(i >= (1 << k), two[k % 2, T.max(i - (1 << k), 0)], 0.0)
                    two[(k + 1) % 2, i] = two[k % 2, i] + before
        if form == "scan by a fragment":
            for k in T.serial(6):
                for i in T.Parallel(N):
                    row[i] = s[i] + T.if_then_else(i >= (1 << k), s[T.max(i - (1 << k), 0)], 0.0)
                T.copy(row, s)
        if form == "tree":
            for k in T.serial(6):
                for i in T.Parallel(32 >> k):
                    s[i] = s[i] + s[i + (32 >> k)]
        if form == "swap":
            for i in T.Parallel(N // 2):
                kept = s[i]
                s[i] = s[i + N // 2]
                s[i + N // 2] = kept
        if form == "barrier that TileLang inserts":
            for i in T.Parallel(N):
                last = s[N - 1 - i]
                s[i] = last * 2.0
        if form == "inside a warp":
            for i in T.Parallel(N):
                s[i] = s[i] + s[i ^ 1]
        if form == "own value":
            for i in T.Parallel(N):
                s[i] = T.if_then_else(i < N // 2, s[i] + s[(i + N // 2) % N], s[i])
        T.copy(s, Y)


def reports(form, threads=128):
    with interpret(sanitize={"lanes"}, on_report="keep") as run:
        kernel(form, threads)(torch.arange(2.0, 2.0 + N), torch.zeros(N))
    return run.reports


@pytest.mark.parametrize(
    ("form", "element"),
    [
        ("scan", "s[31]"),
        ("scan that selects", "s[31]"),
        ("first element", "s[0]"),
        ("global", "X[63]"),
    ],
)
def test_an_element_that_another_iteration_writes_is_reported(form, element):
    report = reports(form)[0]
    assert report.sanitizer == "lanes"
    assert f" {element}, which another iteration writes" in report.message
    assert ("another tensor" if form == "global" else "TileLang puts a barrier") in report.hint


def test_one_warp_that_needs_two_rounds_is_reported():
    assert len(reports("two rounds of one warp", threads=32)) == 1


@pytest.mark.parametrize(
    "form",
    [
        "scan in two buffers",
        "scan by a fragment",
        "tree",
        "swap",
        "barrier that TileLang inserts",
        "inside a warp",
        "own value",
    ],
)
def test_what_no_other_warp_writes_is_not(form):
    assert reports(form) == []
