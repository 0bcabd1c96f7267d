"""Integers read past the end of a table, although nothing depends on them."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import DEFAULT_SANITIZERS, interpret

TABLE = torch.tensor([1, 2, 3], dtype=torch.int32)


@jit_kernel(X="f32[n]", table="i32[p]", Y="f32[64]", out_idx=[2])
def walk(X, table, Y, form):
    p = table.shape[0]
    with T.Kernel(1, threads=32) as bx:
        f = T.alloc_fragment((64,), "float32")
        last = T.alloc_var("int32")
        last = 0
        T.clear(f)
        if form == "loop bound":
            for t in T.serial(table[p]):
                last += t
        if form == "if after the read":
            for t in T.serial(p + 1):
                if table[t] > 0 and t < p:
                    last += 1
        if form == "unused in the last iteration":
            for t in T.serial(p + 1):
                page = table[t]
                last = T.if_then_else(page > 0, t, last)
        if form == "next entry":
            for t in T.serial(p):
                for i in T.Parallel(64):
                    f[i] += X[table[t] * 4 + i % 4] + T.Cast("float32", table[t + 1])
        if form == "entry before":
            for t in T.serial(p):
                last += table[t - 1]
        if form == "index of a copy":
            for t in T.serial(p + 1):
                T.copy(X[table[t] * 4 : table[t] * 4 + 64], f)
        if form == "some iterations":
            for i in T.Parallel(64):
                if i < 3:
                    f[i] = X[table[p + bx]]
        if form == "of a table":
            last = table[table[bx] + 2]
        if form == "if before the read":
            for t in T.serial(p + 1):
                if t < p and table[t] > 0:
                    last += table[t]
        if form == "if_then_else":
            for t in T.serial(p):
                last += T.if_then_else(t + 1 < p, table[t + 1], 0)
        if form == "no iteration":
            for i in T.Parallel(64):
                if i < last:
                    f[i] = X[table[p + bx]]
        if form == "partial tile":
            for i in T.Parallel(64):
                f[i] = T.Cast("float32", table[i])
        if form == "safe value":
            T.annotate_safe_value({table: 7})
            last = table[p + bx]
        f[0] += T.Cast("float32", last)
        T.copy(f, Y)


def reports(form, sanitize=True):
    with interpret(sanitize=sanitize, on_report="keep") as run:
        walk(form)(torch.ones(100), TABLE)
    return [(report.sanitizer, report.buffer, report.index) for report in run.reports]


@pytest.mark.parametrize(
    ("form", "index"),
    [
        ("loop bound", 3),
        ("if after the read", 3),
        ("unused in the last iteration", 3),
        ("next entry", 3),
        ("entry before", -1),
        ("index of a copy", 3),
        ("some iterations", 3),
        ("of a table", 3),
    ],
)
def test_integer_read_past_a_table_is_reported(form, index):
    assert reports(form) == [("tables", "table", (index,))]


@pytest.mark.parametrize(
    "form", ["if before the read", "if_then_else", "no iteration", "partial tile", "safe value"]
)
def test_integer_that_is_not_read_or_meant_is_not_reported(form):
    assert reports(form) == []


def test_reads_past_tables_can_be_tolerated_alone():
    assert reports("next entry", DEFAULT_SANITIZERS - {"tables"}) == []
    assert reports("next entry", {"guarded"}) == [("guarded", "table", (3,))]
