"""Scalar statements that every thread of a block executes, and that read what they write."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

N = 4


@T.macro
def raise_by(S, b, value):
    S[b] = S[b] + value


@jit_kernel(S="f32[N]", X="f32[N]", Y="f32[N]")
def kernel(S, X, Y, form, threads=128):
    with T.Kernel(N, threads=threads) as b:
        s = T.alloc_shared((2, 2), "float32")
        flat = T.view(s, (4,))
        v = T.alloc_var("float32")
        row = T.alloc_fragment((N,), "float32")
        total = T.alloc_fragment((1,), "float32")
        tx = T.get_thread_binding()
        if form == "global":
            S[b] = S[b] * 0.5 + X[b]
        if form == "shared":
            s[0, 0] = X[b]
            s[0, 0] = s[0, 0] + 1.0
            Y[b] = s[0, 0]
        if form == "view":
            s[0, 1] = X[b]
            flat[1] = s[0, 1] + 1.0
            Y[b] = flat[1]
        if form == "macro":
            raise_by(S, b, X[b])
        if form == "thread index in use":
            if tx < 2:
                Y[b] = X[b]
            S[b] = S[b] + 1.0
        if form == "four warps":  # noqa: SIM102  # one is of Python, one of the kernel
            if tx < 128:
                S[b] = S[b] + 1.0
        if form == "variable":
            v = S[b]
            for i in T.serial(3):
                v = v + X[i]
            S[b] = v
        if form == "binding":
            old = S[b]
            Y[b] = old
            S[b] = old + 1.0
        if form == "exchange":
            old = S[b]
            S[b] = X[b]
            Y[b] = old
        if form == "state":
            if S[b] == 1.0:
                S[b] = 2.0
            elif S[b] == 2.0:
                S[b] = 3.0
        if form == "loop":
            for i in T.serial(3):
                S[b] = S[b] + X[i]
        if form == "read by all, copied between":
            v = S[b]
            T.copy(X, row)
            S[b] = v + 1.0
        if form == "sum of a fragment":
            T.copy(X, row)
            T.reduce_sum(row, total)
            S[b] = S[b] + total[0]
        # From here on, right.
        if form == "one thread":  # noqa: SIM102
            if tx == 0:
                S[b] = S[b] * 0.5 + X[b]
                v = S[b]
                S[b] = v + 1.0
        if form == "one warp":  # noqa: SIM102
            if tx < 32:
                S[b] = S[b] * 0.5 + X[b]
        if form == "one value":
            Y[b] = X[b]
            Y[b] = X[b] + 1.0
        if form == "maximum":
            S[b] = T.max(S[b], X[b])
            v = S[b]
            v = T.max(v, 5.0)
            S[b] = v
            if S[b] < 6.0:  # noqa: PLR1730  # a branch, not a maximum
                S[b] = 6.0
        if form == "own element":
            s[tx % 2, 0] = X[b]
            v = S[b]
            v = v + 1.0
            Y[b] = v
        if form == "barrier that TileLang inserts":
            s[0, 0] = X[b]
            old = s[0, 0]
            flat[2] = old
            s[0, 0] = old + 1.0
        if form == "one thread by TileLang":
            s[0, 0] = X[b]
            T.copy(X, row)
            T.reduce_sum(row, total)
            s[0, 0] = s[0, 0] + total[0]
            Y[b] = s[0, 0]
        if form == "parallel":
            for i in T.Parallel(1):
                S[b + i] = S[b + i] * 0.5 + X[b + i]


def reports(form, threads=128):
    with interpret(sanitize={"lanes"}, on_report="keep") as run:
        kernel(form, threads)(torch.ones(N), torch.arange(2.0, 2.0 + N), torch.zeros(N))
    return run.reports


@pytest.mark.parametrize(
    ("form", "element", "threads"),
    [
        ("global", "S[0]", 128),
        ("shared", "s[0, 0]", 128),
        ("view", "s[1]", 128),
        ("macro", "S[0]", 128),
        ("thread index in use", "S[0]", 128),
        ("four warps", "S[0]", 128),
        ("variable", "S[0]", 128),
        ("binding", "S[0]", 128),
        ("exchange", "S[0]", 128),
        ("state", "S[0]", 128),
        ("loop", "S[0]", 128),
        ("read by all, copied between", "S[0]", 128),
        ("sum of a fragment", "S[0]", 128),
    ],
)
def test_what_threads_repeat_with_another_result_is_reported(form, element, threads):
    (report,) = reports(form, 256 if form == "four warps" else 128)
    assert report.sanitizer == "lanes"
    assert report.message.startswith(element)
    assert f"all {threads} threads" in report.message
    assert "if T.get_thread_binding() == 0" in report.hint


@pytest.mark.parametrize(
    "form",
    [
        "one thread",
        "one warp",
        "one value",
        "maximum",
        "own element",
        "barrier that TileLang inserts",
        "one thread by TileLang",
        "parallel",
    ],
)
def test_what_threads_may_repeat_is_not(form):
    assert reports(form) == []


def test_a_block_of_one_warp_runs_in_step():
    assert reports("global", threads=32) == []
    assert len(reports("global", threads=64)) == 1


def test_the_second_run_leaves_no_trace():
    state, x, y = torch.ones(N), torch.arange(2.0, 2.0 + N), torch.zeros(N)
    with interpret(sanitize=True, on_report="keep"):
        kernel("binding")(state, x, y)
    assert state.tolist() == [2.0] * N
    assert y.tolist() == [1.0] * N
