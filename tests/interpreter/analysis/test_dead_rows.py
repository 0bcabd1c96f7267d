"""Rows of tiles that never reach memory are left out, with the same bits and the same reports."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import SANITIZERS, generate, interpret
from tlmatrix.interpreter.analysis.liveness import live_rows
from tlmatrix.interpreter.analysis.usage import kernel_usage
from tlmatrix.interpreter.emit.choices import root_choice
from tlmatrix.interpreter.frontend import programs, shadows
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import normalized
from tlmatrix.interpreter.sync.externs import is_modelled
from tlmatrix_kernels.attention import varlen_attention

LENGTHS = [0, 1, 15, 16, 17, 31, 32, 33, 40]
CUTS = torch.tensor([sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)], dtype=torch.int32)
WATCHED = frozenset(SANITIZERS) - {"guarded"}


def program(body):
    """Blocks of 32 rows of sequences of X [rows, 64] and Y, with tiles a and b and a product c."""

    @tilelang.jit
    def made():
        rows, bounds = T.dynamic("rows"), T.dynamic("bounds")

        @T.prim_func
        def main(
            X: T.Tensor((rows, 64), "float16"),
            W: T.Tensor((64, 64), "float16"),
            cuts: T.Tensor((bounds,), "int32"),
            Y: T.Tensor((rows, 64), "float32"),
        ):
            with T.Kernel(2, bounds - 1, threads=128) as (tile, b):
                x = T.alloc_shared((32, 64), "float16")
                w = T.alloc_shared((64, 64), "float16")
                acc = T.alloc_fragment((32, 64), "float32")
                total = T.alloc_fragment((32,), "float32")
                first = cuts[b] + tile * 32
                length = cuts[b + 1] - cuts[b] - tile * 32
                if length > 0:
                    T.copy(X[first, 0], x)
                    T.copy(W, w)
                    T.gemm(x, w, acc, clear_accum=True)
                    T.reduce_sum(acc, total, dim=1)
                    body(X, Y, x, w, acc, total, first, length)

        return main

    return made


@T.macro
def stored_by_the_length(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[i, d] - total[i]


@T.macro
def whole_or_by_the_length(X, Y, x, w, acc, total, first, length):
    if length >= 32:
        T.copy(acc, Y[first, 0])
    else:
        for i, d in T.Parallel(32, 64):
            if T.And(d < 64, length > i):
                Y[first + i, d] = acc[i, d]


@T.macro
def chosen_first(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        acc[i, d] = T.if_then_else(i < length, acc[i, d] + X[first + i, d], 0.0)
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[i, d]


@T.macro
def one_row_more(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        if i <= length:
            Y[first + i, d] = acc[i, d]


@T.macro
def stored_whole(X, Y, x, w, acc, total, first, length):
    T.copy(acc, Y[first, 0])


@T.macro
def whole_a_row_too_soon(X, Y, x, w, acc, total, first, length):
    if length >= 31:
        T.copy(acc, Y[first, 0])
    else:
        for i, d in T.Parallel(32, 64):
            if i < length:
                Y[first + i, d] = acc[i, d]


@T.macro
def zeros_behind(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[i, d]
        else:
            Y[first + i, d] = 0


@T.macro
def turned_around(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[31 - i, d]


@T.macro
def summed_over_rows(X, Y, x, w, acc, total, first, length):
    T.gemm(x, x, w, transpose_A=True, clear_accum=True)
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[i, d] + w[i, d]


@T.macro
def one_row_for_all(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(32, 64):
        if i < length:
            Y[first + i, d] = acc[i, d] + total[31]


@T.macro
def steps_of_two(X, Y, x, w, acc, total, first, length):
    for i, d in T.Parallel(16, 64):
        if 2 * i < length:
            Y[first + 2 * i, d] = acc[2 * i, d]


CUT = ["stored_by_the_length", "whole_or_by_the_length", "chosen_first", "one_row_more"]
WHOLE = [
    "stored_whole", "whole_a_row_too_soon", "zeros_behind", "turned_around", "summed_over_rows",
    "one_row_for_all", "steps_of_two",
]  # fmt: skip


def run(body, **options):
    """The bits of Y and the reports."""
    torch.manual_seed(0)
    rows = int(CUTS[-1])
    x, w = torch.randn(rows, 64).half(), torch.randn(64, 64).half()
    y = torch.full((rows, 64), torch.nan)
    packed = {"X": CUTS, "Y": CUTS}
    with interpret(sequences=packed, on_report="keep", **options) as session:
        program(globals()[body])()(x, w, CUTS, y)
    reports = [(r.sanitizer, r.line, r.buffer, r.index, r.block, r.count) for r in session.reports]
    return y.view(torch.int32), reports


def rows_left_out(body):
    """The groups of rows of the kernel that its length limits."""
    with interpret():
        func = program(globals()[body])().prim_func
    kernel = normalized(read_all(saved(func)), is_modelled)
    return live_rows(kernel, kernel_usage(kernel), root_choice)


def both(monkeypatch, work):
    """What work gives with rows left out, and with all of them."""
    cut = work()
    with monkeypatch.context() as patch:
        patch.setattr(generate, "live_rows", lambda *_: [])
        patch.setenv("TLMATRIX_PROGRAMS", "off")
        patch.setattr(programs, "_known", {})
        patch.setattr(shadows, "_shadows", {})
        whole = work()
    return cut, whole


@pytest.mark.parametrize("body", CUT)
def test_rows_behind_the_length_are_left_out(body):
    assert rows_left_out(body)


@pytest.mark.parametrize("body", WHOLE)
def test_rows_that_something_may_see_are_not(body):
    assert not rows_left_out(body)


@pytest.mark.parametrize("sanitize", [None, True, WATCHED], ids=["plain", "default", "all"])
@pytest.mark.parametrize("body", CUT + WHOLE)
def test_neither_bits_nor_reports_change(body, sanitize, monkeypatch):
    cut, whole = both(monkeypatch, lambda: run(body, sanitize=sanitize))
    assert torch.equal(cut[0], whole[0])
    assert cut[1] == whole[1]


def test_a_store_past_the_sequence_and_a_tile_read_past_it_are_reported():
    assert rows_left_out("one_row_more")
    _, reports = run("one_row_more", sanitize=WATCHED)
    assert {"sequences", "overreads"} <= {report[0] for report in reports}


def test_what_counts_coverage_gives_the_same_bits():
    assert torch.equal(run("chosen_first", coverage=True)[0], run("chosen_first")[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", ["split", "grouped"])
def test_attention_and_its_gradients_keep_their_bits(causal, backward, monkeypatch):
    def work():
        torch.manual_seed(0)
        lengths = torch.tensor([0, 1, 17, 17, 80, 280], dtype=torch.int32)
        q, k, v, do = (torch.randn(280, n, 64).half() for n in (4, 2, 2, 4))
        for tensor in (q, k, v):
            tensor.requires_grad_()
        declared = dict.fromkeys(("q", "k", "v", "out", "dq", "do"), lengths)
        with interpret(sanitize=True, sequences=declared, on_report="keep") as session:
            out, lse = varlen_attention(q, k, v, lengths, lengths, causal=causal, backward=backward)
            grads = torch.autograd.grad(out, (q, k, v), do)
        assert not session.reports
        return [out.detach(), lse, *grads]

    for cut, whole in zip(*both(monkeypatch, work), strict=True):
        assert torch.equal(cut, whole)
