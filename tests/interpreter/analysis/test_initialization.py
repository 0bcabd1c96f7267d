"""Buffers that are written whole before they are read get no poison; all others do."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.analysis.usage import definitely_initialized
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ops import TABLES


def program(body):
    """A kernel of two blocks over rows of X and Y, with the fragments a and b."""

    n = T.dynamic("n")

    @jit_kernel
    def made(X: T.Tensor((n, 8), "float32"), Y: T.Tensor((n, 8), "float32"), turns: T.int32):
        with T.Kernel(2, threads=32) as block:
            a = T.alloc_fragment((4, 8), "float32")
            b = T.alloc_fragment((4, 8), "float32")
            body(X, Y, turns, block, a, b)

    return made


@T.macro
def copied(X, Y, turns, block, a, b):
    T.copy(X[block * 4, 0], a)
    for i, j in T.Parallel(4, 8):
        b[i, j] = a[i, j] + 1
    T.copy(b, Y[block * 4, 0])


@T.macro
def only_in_turns(X, Y, turns, block, a, b):
    for _ in T.serial(turns):
        T.copy(X[block * 4, 0], a)
    T.copy(a, Y[block * 4, 0])


@T.macro
def within_turns(X, Y, turns, block, a, b):
    T.clear(b)
    for _ in T.serial(turns):
        T.copy(X[block * 4, 0], a)
        for i, j in T.Parallel(4, 8):
            b[i, j] += a[i, j]
    T.copy(b, Y[block * 4, 0])


@T.macro
def on_one_branch(X, Y, turns, block, a, b):
    if turns > block:
        T.copy(X[block * 4, 0], a)
    T.copy(a, Y[block * 4, 0])


@T.macro
def on_both_branches(X, Y, turns, block, a, b):
    if turns > block:
        T.copy(X[block * 4, 0], a)
    else:
        T.clear(a)
    T.copy(a, Y[block * 4, 0])


@T.macro
def in_part(X, Y, turns, block, a, b):
    T.copy(X[block * 4, 0], a)
    for i, j in T.Parallel(4, 4):
        b[i, j] = a[i, j]
    T.copy(b, Y[block * 4, 0])


@T.macro
def under_a_mask(X, Y, turns, block, a, b):
    for i, j in T.Parallel(4, 8):
        if i < turns:
            a[i, j] = X[block * 4 + i, j]
    T.copy(a, Y[block * 4, 0])


@T.macro
def along_one_axis(X, Y, turns, block, a, b):
    for i, j in T.Parallel(4, 8):
        a[i, i] = X[block * 4 + i, j]
    T.copy(a, Y[block * 4, 0])


@T.macro
def from_itself(X, Y, turns, block, a, b):
    for i, j in T.Parallel(4, 8):
        a[i, j] = a[i, j] + X[block * 4 + i, j]
    T.copy(a, Y[block * 4, 0])


def run(body, turns, **options):
    x, y = torch.randn(8, 8), torch.zeros(8, 8)
    with interpret(**options) as found:
        kernel = program(body)()
        kernel(x, y, turns)
    return kernel, x, y, found


@pytest.mark.parametrize(
    ("body", "turns", "poisoned"),
    [
        (copied, 0, ""),
        (only_in_turns, 0, "a"),
        (within_turns, 2, ""),
        (on_one_branch, 1, "a"),
        (on_both_branches, 1, ""),
        (in_part, 0, "b"),
        (under_a_mask, 3, "a"),
        (along_one_axis, 0, "a"),
        (from_itself, 0, "a"),
    ],
)
def test_what_may_be_read_before_it_is_written_starts_as_nan(body, turns, poisoned):
    kernel, _, y, _ = run(body, turns)
    written = definitely_initialized(read_all(saved(kernel.prim_func)), TABLES.overwritten)
    assert "".join(sorted({"a", "b"} - {data.name for data in written})) == poisoned
    assert bool(y.isnan().any()) is bool(poisoned)


def test_sanitizers_say_so_as_well():
    for body, turns in ((only_in_turns, 0), (in_part, 0), (under_a_mask, 3)):
        *_, found = run(body, turns, sanitize=True)
        assert any(report.sanitizer == "uninitialised" for report in found.reports), body
    for body, turns in ((copied, 0), (within_turns, 2), (on_both_branches, 1)):
        *_, found = run(body, turns, sanitize=True)
        assert not found.reports


@jit_kernel(A="f32[16, 32]", B="f32[32, 16]", C="f32[16, 16]", threads=32)
def product(A, B, C, clear, alone):
    a = T.alloc_shared((16, 32), "float32")
    b = T.alloc_shared((32, 16), "float32")
    c = T.alloc_fragment((16, 16), "float32")
    T.copy(A, a)
    T.copy(B, b)
    T.copy(C, c)
    if not alone:
        if clear:
            T.clear(c)
        else:
            T.fill(c, 1)
    T.gemm(a, b, c)
    T.copy(c, C)


@pytest.mark.parametrize(("clear", "alone"), [(True, False), (False, False), (False, True)])
def test_a_product_starts_from_zero_only_where_zeros_were_filled_in(clear, alone):
    a, b, c = torch.randn(16, 32), torch.randn(32, 16), torch.randn(16, 16)
    before = c.clone()
    with interpret():
        product(clear, alone)(a, b, c)
    start = before if alone else torch.full_like(c, 0 if clear else 1)
    assert torch.allclose(c, start + a @ b, atol=1e-5)
