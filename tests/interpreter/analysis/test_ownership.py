"""Fragments of which TileLang 0.1.15 gives elements to threads that do not have them.

Which kernels are right was read off the generated CUDA.
"""

from pathlib import Path

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(A="f32[16, 16]", C="f32[16, 16]", threads=128)
def kernel(A, C, form):
    f = T.alloc_fragment((16, 16), "float32")
    r = T.alloc_fragment((16,), "float32")
    s = T.alloc_shared((16, 16), "float32")
    if form == "serial store to global":
        T.copy(A, f)
        for i in T.serial(16):
            for j in T.serial(16):
                C[i, j] = f[i, j] * 2
    if form == "serial store to shared":
        T.copy(A, f)
        for i in T.serial(16):
            for j in T.serial(16):
                s[i, j] = f[i, j] * 2
        T.copy(s, C)
    if form == "serial update":
        T.copy(A, f)
        for i in T.serial(16):
            for j in T.serial(16):
                f[i, j] = f[i, j] * 2
        T.copy(f, C)
    if form == "left half, then all":
        for i, j in T.Parallel(16, 8):
            f[i, j] = A[i, j]
        for i, j in T.Parallel(16, 8):
            f[i, j + 8] = A[i, j + 8]
        T.copy(f, C)
    if form == "upper half, lower half, then all":
        for i, j in T.Parallel(8, 16):
            f[i, j] = A[i, j]
        for i, j in T.Parallel(8, 16):
            f[i + 8, j] = A[i + 8, j]
        for i, j in T.Parallel(16, 16):
            C[i, j] = f[i, j]
    if form == "lower half, then all":
        for i, j in T.Parallel(16, 16):
            f[i, j] = A[i, j]
        for i, j in T.Parallel(8, 16):
            f[i + 8, j] = f[i + 8, j] * 2
        for i, j in T.Parallel(16, 16):
            C[i, j] = f[i, j]
    # From here on, right.
    if form == "serial store of rows":
        T.copy(A, f)
        T.reduce_sum(f, r, dim=1)
        for i in T.serial(16):
            C[i, 0] = r[i]
    if form == "serial fill of rows":
        for i in T.serial(16):
            r[i] = A[i, 0]
        for i, j in T.Parallel(16, 16):
            C[i, j] = r[i]
    if form == "serial condition":
        T.copy(A[0, 0:16], r)
        for i in T.serial(16):
            if r[i] > 0.5:
                for j in T.Parallel(16):
                    C[i, j] = A[i, j]
    if form == "parallel in serial":
        T.copy(A, f)
        for i in T.serial(16):
            for j in T.Parallel(16):
                C[i, j] = f[i, j] * 2
    if form == "store of a part, skipped outside":
        T.copy(A[0, 0:8], r[0:8])
        for i in T.Parallel(16):
            C[0, i + 8] = r[i]
    if form == "condition that excludes the rest":
        T.copy(A[0:8, :], f[0:8, :])
        for i, j in T.Parallel(16, 16):
            if i < 8:
                C[i, j] = f[i, j]
    if form == "left half alone":
        T.copy(A, f)
        for i, j in T.Parallel(16, 8):
            C[i, j] = f[i, j]
    if form == "all, then rows of a half":
        T.copy(A, f)
        for i, j in T.Parallel(4, 16):
            f[i, j] = f[i, j] * 2
        T.copy(f, C)
    if form == "reducer, which has no layout":
        sums = T.alloc_reducer((16,), "float32", replication="all")
        T.copy(A, f)
        T.clear(sums)
        for i, j in T.Parallel(16, 8):
            sums[i] += f[i, j]
        T.finalize_reducer(sums)
        T.copy(sums, C[0, :])


def reports(form, **options):
    with interpret(sanitize={"lanes"}, on_report="keep", **options) as run:
        kernel(form)(torch.rand(16, 16), torch.zeros(16, 16))
    return run.reports


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("serial store to global", "C[i, j] = f[i, j] * 2"),
        ("serial store to shared", "s[i, j] = f[i, j] * 2"),
        ("serial update", "f[i, j] = f[i, j] * 2"),
    ],
)
def test_a_scalar_statement_of_wrong_threads_is_reported(form, line):
    (report,) = reports(form)
    assert report.sanitizer == "lanes"
    assert report.buffer == "f"
    assert line in Path(report.file).read_text().splitlines()[report.line - 1]
    assert "use T.Parallel" in report.hint


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("left half, then all", "f[0:16, 0:8]"),
        ("upper half, lower half, then all", "f[0:8, 0:16]"),
        ("lower half, then all", "f[8:16, 0:16]"),
    ],
)
def test_a_layout_of_a_part_is_reported_where_the_rest_is_read(form, part):
    (report,) = reports(form)
    assert f"elements of f outside of {part} belong to no thread" in report.message


@pytest.mark.parametrize(
    "form",
    [
        "serial store of rows",
        "serial fill of rows",
        "serial condition",
        "parallel in serial",
        "store of a part, skipped outside",
        "condition that excludes the rest",
        "left half alone",
        "all, then rows of a half",
        "reducer, which has no layout",
    ],
)
@pytest.mark.filterwarnings("ignore:alloc_reducer")
def test_what_is_compiled_to_right_code_is_not(form):
    assert reports(form) == []
