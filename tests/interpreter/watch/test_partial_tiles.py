"""Tiles that reach past the end of a packed sequence: only its own rows are stored."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import SANITIZERS, interpret

LENGTHS = [0, 1, 15, 16, 17, 31, 32, 33, 40]
CUTS = torch.tensor([sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)], dtype=torch.int32)
WATCHED = frozenset(SANITIZERS) - {"guarded"}


def program(body):
    """Blocks of 32 rows of sequences of X [rows, 64] and Y, with tiles a and b and a product c."""

    @jit_kernel(X="f16[rows, 64]", W="f16[64, 64]", cuts="i32[bounds]", Y="f32[rows, 64]")
    def made(X, W, cuts, Y):
        bounds = cuts.shape[0]
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


def run(body, **options):
    """Y, what it should be, and the reports."""
    torch.manual_seed(0)
    rows = int(CUTS[-1])
    x, w = torch.randn(rows, 64).half(), torch.randn(64, 64).half()
    y = torch.full((rows, 64), torch.nan)
    packed = {"X": CUTS, "Y": CUTS}
    with interpret(sequences=packed, on_report="keep", **options) as session:
        program(globals()[body])()(x, w, CUTS, y)
    product = x.float() @ w.float()
    expected = {
        "stored_by_the_length": product - product.sum(1, keepdim=True),
        "chosen_first": product + x,
    }
    return y, expected.get(body, product), session.reports


@pytest.mark.parametrize("options", [{}, {"sanitize": True}, {"coverage": True}], ids=str)
@pytest.mark.parametrize("body", ["stored_by_the_length", "whole_or_by_the_length", "chosen_first"])
def test_each_sequence_gets_its_rows(body, options):
    y, expected, reports = run(body, **options)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-3)
    assert not reports


def test_a_store_past_the_sequence_and_a_tile_read_past_it_are_reported():
    _, _, reports = run("one_row_more", sanitize=WATCHED)
    assert {"sequences", "overreads"} <= {report.sanitizer for report in reports}
