"""Coverage says what of a kernel was exercised: lines, guards, trips; and changes no result."""

import json
import random
from pathlib import Path

import pytest
import role_kernels
import tilelang.language as T
import torch
from tile_programs import tile_program, traced

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Coverage, Feature, interpret, interpreted

BLOCK = 16


def line_of(mark):
    """The number of the line that has a comment."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
    return found


def of_line(items, mark):
    """Guards or loops of a line by name, without the file."""
    line = line_of(mark)
    return {
        getattr(k, "name", getattr(k, "variable", "")): v
        for k, v in items.items()
        if k.line == line
    }


def hits(coverage, mark):
    return coverage.lines[(__file__, line_of(mark))]


# Sums of chosen blocks: a loop over them, guards against the ends.
@jit_kernel(A="f32[n]", chosen="i32[m]", B="f32[n]", out_idx=[2])
def summed(A, chosen, B):
    n, m = A.shape[0], chosen.shape[0]
    with T.Kernel(T.ceildiv(n, BLOCK), threads=32) as bx:
        tile = T.alloc_fragment((BLOCK,), "float32")
        total = T.alloc_fragment((BLOCK,), "float32")
        T.clear(total)  # clear
        for k in T.serial(m):  # loop
            T.copy(A[chosen[k] * BLOCK], tile)  # copy
            for i in T.Parallel(BLOCK):
                total[i] += tile[i]  # add
        if m > 3:  # scalar
            for i in T.Parallel(BLOCK):
                total[i] = total[i] / 2  # rare
        for i in T.Parallel(BLOCK):
            if T.And(bx * BLOCK + i < n, i < BLOCK):  # mask
                B[bx * BLOCK + i] = T.if_then_else(i < m, total[i], -1.0)  # choice


def cover(*sizes):
    """The coverage of `summed` called once for each (elements, chosen blocks)."""
    with interpret(coverage=True) as run:
        for n, chosen in sizes:
            summed()(torch.randn(n), torch.tensor(chosen, dtype=torch.int32))
    return run.coverage


def test_lines_count_how_often_control_comes_by():
    coverage = cover((32, [0, 1]))
    assert hits(coverage, "clear") == 2  # two blocks
    assert hits(coverage, "add") == hits(coverage, "copy") == 4
    assert hits(coverage, "rare") == 0
    assert coverage.files == (__file__,)


def test_aligned_lengths_leave_guards_that_never_fail():
    coverage = cover((32, [0, 1]), (48, [1]))
    (mask,) = (g for name, g in of_line(coverage.guards, "mask").items() if "n" in name)
    assert mask.letters == "T--"
    assert mask.never == ("false",)
    assert of_line(coverage.guards, "copy")["edge 1 A"].never == ("false",)
    assert of_line(coverage.guards, "scalar")["if 1"].letters == "-F"


def test_an_unaligned_length_fills_masks_in_part():
    coverage = cover((32, [0, 1]), (33, [1, 2]))
    parts = of_line(coverage.guards, "mask")
    assert set(parts) == {"if 1", "if 1 (bx * #) + i < n", "if 1 i < #"}
    assert parts["if 1 (bx * #) + i < n"].letters == "T-P"
    assert parts["if 1"].letters == "T-P"
    assert parts["if 1 i < #"].never == ("false",)
    edge = of_line(coverage.guards, "copy")["edge 1 A"]
    assert (edge.true, edge.false, edge.partly) == (4 + 3, 0, 3)


def test_a_tile_wholly_outside_is_told_from_one_that_is_clipped():
    edge = of_line(cover((20, [5])).guards, "copy")["edge 1 A"]
    assert (edge.true, edge.false, edge.partly) == (0, 2, 0)


def test_loops_tell_the_trips_that_were_seen():
    loop = of_line(cover((16, [0, 0, 0]), (16, [0])).loops, "loop")["k"]
    assert (loop.zero, loop.one, loop.more, loop.least, loop.most) == (0, 1, 1, 1, 3)
    assert loop.never == ("0",)
    empty = of_line(cover((16, [])).loops, "loop")["k"]
    assert empty.never == ("1", "more")


def test_a_choice_inside_a_branch_counts_in_both_forms_of_the_branch():
    coverage = cover((32, list(range(2))), (33, [0] * BLOCK))
    assert of_line(coverage.guards, "choice")["select 1"].letters == "T-P"
    assert hits(coverage, "choice") == 2 + 3


@jit_kernel(A="i32[n]", B="i32[2]")
def jumping(A, B):
    n = A.shape[0]
    with T.Kernel(1, threads=32):
        left = T.alloc_var("int32")
        left = n
        for k in T.serial(n):  # broken
            if A[k] < 0:  # stop
                T.loop_break()
            B[0] = A[k]  # after the break
        while left > 0:  # while
            left = left - 1
        B[1] = left


def test_a_loop_that_is_left_counts_the_trips_it_made():
    with interpret(coverage=True) as run:
        jumping()(torch.tensor([5, 6, -1, 7], dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
    assert of_line(run.coverage.loops, "broken")["k"].range == "3"
    assert of_line(run.coverage.loops, "while")["while"].range == "4"
    assert hits(run.coverage, "stop") == 3
    assert hits(run.coverage, "after the break") == 2


@jit_kernel(A="f32[n]", B="f32[n]")
def nested(A, B):
    n = A.shape[0]
    with T.Kernel(1, threads=32):
        for i in T.Parallel(BLOCK):
            if i < n:
                if A[i] > 0:  # loaded
                    B[i] = T.if_then_else(A[i] > 5, 5.0, A[i])  # clamp
                else:
                    B[i] = 0  # negative


def test_a_mask_inside_of_a_mask_asks_only_the_lanes_that_come_to_it():
    a = torch.tensor([1.0, 2.0, 3.0])
    with interpret(coverage=True) as run:
        nested()(a, torch.zeros(3))
    # The lanes past the end hold no value that is positive, and are not asked.
    assert of_line(run.coverage.guards, "loaded")["if 1"].letters == "T--"
    assert of_line(run.coverage.guards, "clamp")["select 1"].letters == "-F-"
    assert hits(run.coverage, "negative") == 0
    with interpret(coverage=True) as run:
        nested()(-a, torch.zeros(3))
    assert of_line(run.coverage.guards, "loaded")["if 1"].letters == "-F-"
    assert hits(run.coverage, "clamp") == 0


@jit_kernel(B="f32[4]", threads=32)
def with_option(B, half):
    if half:
        T.fill(B, 0.5)  # half
    else:
        T.fill(B, 1.0)  # whole


def test_what_an_option_leaves_out_is_no_line_until_a_variant_has_it():
    with interpret(coverage=True) as run:
        with_option(True)(torch.zeros(4))
    assert (__file__, line_of("whole")) not in run.coverage.lines
    with interpret(coverage=True) as run:
        for half in (True, False):
            with_option(half)(torch.zeros(4))
    assert hits(run.coverage, "half") == hits(run.coverage, "whole") == 1


def test_merging_is_the_coverage_of_both_runs():
    one, other = cover((32, [0, 1])), cover((33, []))
    assert one + other == cover((32, [0, 1]), (33, []))
    assert Coverage.merged([one, other]).features() == one.features() | other.features()
    assert one + Coverage() == one


def test_json_keeps_everything():
    coverage = cover((33, [0, 1]), (16, []))
    assert Coverage.from_json(json.loads(json.dumps(coverage.to_json()))) == coverage


def test_features_are_what_one_run_adds_to_others():
    with interpret(coverage=True) as aligned:
        summed()(torch.randn(32), torch.tensor([0], dtype=torch.int32))
    with interpret(coverage=True) as run:
        summed()(torch.randn(33), torch.tensor([], dtype=torch.int32))
    assert run.features() == run.coverage.features()
    new = run.features() - aligned.features()
    assert Feature(__file__, line_of("loop"), "loop k", "0") in new
    assert Feature(__file__, line_of("mask"), "if 1 (bx * #) + i < n", "partly") in new


def test_contexts_inside_count_for_the_one_around():
    with interpret(coverage=True) as outer:
        with interpret(sanitize=True) as inherits:
            summed()(torch.randn(32), torch.tensor([0], dtype=torch.int32))
        with interpret(coverage=True) as own:
            summed()(torch.randn(32), torch.tensor([0], dtype=torch.int32))
        with interpret(coverage=False):
            summed()(torch.randn(32), torch.tensor([0], dtype=torch.int32))
    assert inherits.coverage == outer.coverage == own.coverage + own.coverage


def test_a_context_that_does_not_count_says_how_to():
    with interpret() as run, pytest.raises(RuntimeError, match="coverage=True"):
        _ = run.coverage


def test_one_kernel_runs_plain_sanitized_and_covered_in_turn():
    a, chosen = torch.randn(33), torch.tensor([0, 2], dtype=torch.int32)
    with interpret(coverage=True) as run:
        kernel = summed()
        covered = kernel(a, chosen)
    counted = run.coverage
    with interpret():
        assert torch.equal(kernel(a, chosen), covered)
    assert run.coverage == counted
    with interpret(sanitize=True, coverage=True) as both:
        assert torch.equal(kernel(a, chosen), covered)
    assert both.coverage == counted
    assert not both.reports


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_the_same_covered(seed, tmp_path):
    program = tile_program(random.Random(seed))
    func = traced(program, tmp_path)
    results = []
    for coverage in (False, True):
        arguments = program.arguments()
        with interpret(coverage=coverage) as run:
            interpreted(func)(*arguments)
        results.append(arguments)
    assert run.coverage.lines
    for plain, covered in zip(*results, strict=True):
        torch.testing.assert_close(covered, plain, rtol=0, atol=0, equal_nan=True)


def test_kernels_with_roles_are_covered():
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    with interpret():
        plain = role_kernels.tma_gemm(64, 64, 64, 2)(a, b)
    with interpret(coverage=True) as run:
        covered = role_kernels.tma_gemm(64, 64, 64, 2)(a, b)
        role_kernels.tma_gemm(32, 32, 32, 2)(a[:32, :32].contiguous(), b[:32, :32].contiguous())
    assert torch.equal(plain, covered)
    coverage = run.coverage
    assert all(coverage.lines.values())
    loops = {loop.range for loop in coverage.loops.values()}
    assert loops == {"1-2"}
