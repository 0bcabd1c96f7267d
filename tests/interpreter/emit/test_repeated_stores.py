"""Parallel loops in which several iterations write one element, all of them of one thread."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

# 32 rows of 32 numbers on 128 threads: each has four neighbours of two rows.
SPREAD = [lambda i, j: (i % 16 * 8 + j // 4, i // 16 * 4 + j % 4)]
OWNERS = [lambda i, j: (i % 16 * 8 + j, i // 16)]


@tilelang.jit(out_idx=[1])
def largest_of_fours(annotated=True, dtype="float32"):
    """Threads keep the largest of their own four numbers; then rows are reduced over threads."""
    spread, owners = SPREAD[0], OWNERS[0]

    @T.prim_func
    def main(X: T.Tensor((64, 32), dtype), Y: T.Tensor((64,), dtype)):
        with T.Kernel(2, threads=128) as b:
            x = T.alloc_fragment((32, 32), dtype)
            part = T.alloc_fragment((32, 8), dtype)
            row = T.alloc_fragment((32,), dtype)
            if annotated:
                T.annotate_layout(
                    {
                        x: T.Fragment((32, 32), forward_fn=spread),
                        part: T.Fragment((32, 8), forward_fn=owners),
                    }
                )
            T.fill(part, -T.infinity(dtype))
            T.copy(X[b * 32, 0], x)
            for i, j in T.Parallel(32, 32):
                four = j // 4
                part[i, four] = T.max(part[i, four], x[i, j])
            T.reduce_max(part, row, dim=1)
            T.copy(row, Y[b * 32])

    return main


@jit_kernel(X="f32[32, 8]", Y="f32[32]", At="i32[32]", out_idx=[1, 2], threads=32)
def largest_and_where(X, Y, At):
    """The largest of each row and where it stands, by the one thread that has the row."""
    x = T.alloc_fragment((32, 8), "float32")
    top = T.alloc_fragment((32,), "float32")
    at = T.alloc_fragment((32,), "int32")
    T.annotate_layout({x: T.Fragment((32, 8), forward_fn=lambda i, j: (i, j))})
    T.fill(top, -T.infinity("float32"))
    T.fill(at, -1)
    T.copy(X, x)
    for i, j in T.Parallel(32, 8):
        if x[i, j] > top[i]:
            top[i] = x[i, j]
            at[i] = j
    T.copy(top, Y)
    T.copy(at, At)


@jit_kernel(out_idx=[1], threads=128)
def row_sums_over_threads(X: T.Tensor((8, 64), "float32"), Y: T.Tensor((8,), "float32")):
    """A race: the numbers of a row are on many threads, and each adds to its own copy."""
    x = T.alloc_fragment((8, 64), "float32")
    acc = T.alloc_fragment((8,), "float32")
    T.annotate_layout({x: T.Fragment((8, 64), forward_fn=lambda i, j: (i % 2 * 64 + j, i // 2))})
    T.clear(acc)
    T.copy(X, x)
    for i, j in T.Parallel(8, 64):
        acc[i] = acc[i] + x[i, j]
    T.copy(acc, Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elements_that_one_thread_accumulates_are_right_and_no_finding(dtype):
    x = torch.randn(64, 32).to(dtype)
    with interpret(sanitize=True) as run:
        y = largest_of_fours(dtype=str(dtype).removeprefix("torch."))(x)
    torch.testing.assert_close(y, x.amax(1), rtol=0, atol=0)
    assert run.reports == []


def test_iterations_of_a_thread_see_what_those_before_them_stored():
    x = torch.randn(32, 8)
    with interpret(sanitize=True) as run:
        y, at = largest_and_where()(x)
    torch.testing.assert_close(y, x.amax(1), rtol=0, atol=0)
    torch.testing.assert_close(at.long(), x.argmax(1), rtol=0, atol=0)
    assert run.reports == []


def test_without_annotated_layouts_lanes_that_accumulate_are_a_finding():
    with interpret(sanitize=True) as run:
        largest_of_fours(annotated=False)(torch.randn(64, 32))
    assert {(r.sanitizer, r.buffer) for r in run.reports} == {("lanes", "part")}


def test_layouts_that_put_a_row_on_many_threads_leave_the_race_a_finding():
    with interpret(sanitize=True) as run:
        row_sums_over_threads()(torch.randn(8, 64))
    assert {(r.sanitizer, r.buffer) for r in run.reports} == {("lanes", "acc")}


def test_turns_of_threads_are_counted_and_explained():
    x = torch.randn(64, 32)
    with interpret(coverage=True, trace=True) as run:
        y = largest_of_fours()(x)
    assert torch.equal(y, x.amax(1))
    assert run.coverage
    assert "part" in str(run.explain(y, (3,)))
