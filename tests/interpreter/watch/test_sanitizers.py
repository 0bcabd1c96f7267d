"""How sanitizers are switched, what they tolerate, what a report says."""

import inspect
import logging
from functools import partial

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import (
    DEFAULT_SANITIZERS,
    SANITIZERS,
    InterpreterError,
    Party,
    SanitizerError,
    Sequences,
    interpret,
)

CU = torch.tensor([0, 20, 50, 96], dtype=torch.int32)


def line_of(factory, text):
    lines, first = inspect.getsourcelines(factory.func.orig_func)
    (found,) = (first + k for k, line in enumerate(lines) if text in line)
    return found


@jit_kernel(X="f32[96]", Y="f32[96]", name="main", out_idx=[1])
def overlapping(X, Y):
    with T.Kernel(3, 2, threads=32) as (bx, by):
        for i in T.Parallel(32):
            if by == 0:
                Y[bx * 32 + i] = X[bx * 32 + i]  # first
        for i in T.Parallel(32):
            if by == 1:
                Y[bx * 32 + i] = X[bx * 32 + i] * 2.0  # second


@jit_kernel(X="f32[n]", Y="f32[n]", name="main", out_idx=[1])
def guarded(X, Y):
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        f = T.alloc_fragment((32,), "float32")
        for i in T.Parallel(32):
            f[i] = X[bx * 32 + i]
        T.copy(f, Y[bx * 32 : bx * 32 + 32])


@jit_kernel(Y="f32[8]", name="main", out_idx=[0], threads=32)
def partly_unwritten(Y):
    for i in T.Parallel(5):
        Y[i] = 1.0


def test_nothing_is_reported_unless_asked_for():
    with interpret() as run:
        partly_unwritten()()
    assert run.reports == []
    assert run.sanitizers == frozenset()


def test_true_means_every_sanitizer_but_the_tolerant_ones():
    with interpret(sanitize=True) as run:
        pass
    assert run.sanitizers == DEFAULT_SANITIZERS
    assert set(SANITIZERS) - DEFAULT_SANITIZERS == {"atomics", "guarded", "overreads"}


def test_a_name_alone_turns_on_that_sanitizer():
    with interpret(sanitize="races") as run:
        overlapping()(torch.ones(96))
        partly_unwritten()()
    assert [r.sanitizer for r in run.reports] == ["races"]


def test_an_unknown_sanitizer_is_refused_with_the_nearest_name():
    with (
        pytest.raises(ValueError, match="no sanitizer is named 'race'; did you mean 'races'"),
        interpret(sanitize={"race"}),
    ):
        pass


def test_a_race_names_both_blocks_and_both_lines():
    with interpret(sanitize=True) as run:
        overlapping()(torch.ones(96))
    (report,) = run.reports
    assert (report.index, report.block, report.count) == ((0,), (0, 1), 3)
    assert report.line == line_of(overlapping, "# second")
    assert report.other == Party((0, 0), __file__, line_of(overlapping, "# first"), "write")
    text = str(report)
    assert "races: Y[0] is written by two blocks" in text
    assert f"at {__file__}:{report.line}, in kernel main, block (0, 1)" in text
    assert "against a write by block (0, 0)" in text


def test_reports_are_raised_when_the_kernel_ends_if_asked_for():
    with (
        interpret(sanitize=True, on_report="raise") as run,
        pytest.raises(
            SanitizerError, match=r"output Y\[5\] is never written, and 2 other"
        ) as caught,
    ):
        partly_unwritten()()
    assert list(caught.value.reports) == run.reports
    assert isinstance(caught.value, InterpreterError)


def test_collected_reports_are_logged(caplog):
    with caplog.at_level(logging.WARNING, "tlmatrix.interpreter"), interpret(sanitize=True):
        partly_unwritten()()
    assert "unwritten: output Y[5] is never written" in caplog.text


def test_reports_are_kept_without_a_word_if_asked_for(caplog):
    with (
        caplog.at_level(logging.WARNING, "tlmatrix.interpreter"),
        interpret(sanitize=True, on_report="keep") as run,
    ):
        partly_unwritten()()
    assert [r.sanitizer for r in run.reports] == ["unwritten"]
    assert caplog.text == ""


def test_a_report_holds_the_tensor_it_is_about():
    with interpret(sanitize=True) as run:
        y = partly_unwritten()()
    assert run.reports[0].tensor.data_ptr() == y.data_ptr()


def test_on_report_takes_three_words():
    with pytest.raises(ValueError, match="on_report must be"), interpret(on_report="ignore"):
        pass


def test_an_inner_context_has_the_sanitizers_of_the_outer():
    with interpret(sanitize={"unwritten"}) as run:
        with interpret():
            partly_unwritten()()
        with interpret(sanitize=False) as quiet:
            partly_unwritten()()
    assert [r.sanitizer for r in run.reports] == ["unwritten"]
    assert quiet.reports == []


def test_a_kernel_made_outside_is_sanitized_inside():
    with interpret():
        kernel = partly_unwritten()
    with interpret(sanitize=True) as run:
        kernel()
    assert len(run.reports) == 1


def test_partial_outputs_may_stay_unwritten():
    with interpret(sanitize=True, partial={"Y"}) as run:
        partly_unwritten()()
    assert run.reports == []


def test_accesses_that_the_guard_skips_are_reported_only_by_name():
    x = torch.ones(40)
    with interpret(sanitize=DEFAULT_SANITIZERS | {"guarded"}) as run:
        guarded()(x)
    assert [(r.sanitizer, r.buffer, r.index) for r in run.reports] == [
        ("guarded", "X", (40,)),
        ("guarded", "Y", (40,)),
    ]
    assert "which TileLang's guard skips" in run.reports[0].message


def test_each_launch_reports_anew_and_equal_findings_are_counted():
    with interpret(sanitize=True) as run:
        for _ in range(2):
            overlapping()(torch.ones(96))
    assert [r.count for r in run.reports] == [3, 3]


@jit_kernel(Y="f32[4]", name="main", out_idx=[0], threads=32)
def same_value(Y):
    for i, _j in T.Parallel(4, 8):
        Y[i] = T.cast(i, "float32")


@pytest.mark.parametrize("limit", [1, 40, 64])
@pytest.mark.parametrize("returns", [False, True])
def test_a_barrier_that_some_threads_do_not_reach_is_reported(limit, returns):
    @jit_kernel(X="f32[64]", Y="f32[64]", threads=64)
    def halves(X, Y):
        tx = T.get_thread_binding()
        s = T.alloc_shared((64,), "float32")
        s[tx] = X[tx]
        if returns:
            if tx >= limit:
                T.thread_return()
            T.sync_threads()
        elif tx < limit:
            T.sync_threads()  # HERE
        if tx < 32:
            Y[tx] = s[tx] + s[tx + 32]

    with interpret(sanitize="barriers", on_report="keep") as run:
        halves()(torch.randn(64), torch.empty(64))
    texts = [(r.sanitizer, r.line, r.message.split(" come")[0]) for r in run.reports]
    if returns or limit == 64:
        assert not texts
    else:
        assert texts == [("barriers", line_of(halves, "HERE"), f"{limit} of 64 threads")]


def test_lanes_that_store_one_same_value_are_no_finding():
    with interpret(sanitize=True) as run:
        same_value()()
    assert run.reports == []


@jit_kernel(X="f32[n]", Cu="i32[4]", Y="f32[n]", name="main")
def packed_rows(X, Cu, Y, overrun):
    with T.Kernel(3, threads=32) as b:
        f = T.alloc_fragment((32,), "float32")
        for tile in T.serial(T.ceildiv(Cu[b + 1] - Cu[b], 32)):
            T.copy(X[Cu[b] + tile * 32], f)
            for i in T.Parallel(32):
                if tile * 32 + i < Cu[b + 1] - Cu[b] + overrun:
                    Y[Cu[b] + tile * 32 + i] = f[i]


def packed_run(overrun, **options):
    with interpret(sequences={"X": CU, "Y": CU}, **options) as run:
        packed_rows(overrun)(torch.ones(96), CU.clone(), torch.zeros(96))
    return run.reports


def test_a_vectorized_sum_is_serial_and_no_finding():
    """TileLang does not vectorize a loop whose iterations store to one element."""

    @jit_kernel(out_idx=[1], threads=32)
    def sums(X: T.Tensor((32, 4), "float32"), Y: T.Tensor((32,), "float32")):
        x = T.alloc_fragment((32, 4), "float32")
        y = T.alloc_fragment((32,), "float32")
        T.copy(X, x)
        for i in T.Parallel(32):
            y[i] = 0.0
            for k in T.vectorized(4):
                y[i] += x[i, k]
        T.copy(y, Y)

    x = torch.randn(32, 4)
    with interpret(sanitize=True) as run:
        torch.testing.assert_close(sums()(x), x.sum(1))
    assert run.reports == []


def test_a_branch_that_no_thread_takes_reads_nothing():
    """One element that all threads of a branch share is read where the branch is taken."""

    @jit_kernel(out_idx=[0])
    def first_block(Y: T.Tensor((2,), "float32")):
        with T.Kernel(2, threads=32) as bx:
            tx = T.get_thread_binding()
            w = T.alloc_shared((1,), "float32")
            if bx == 0:
                w[0] = 1.0
            if tx == 0:
                Y[bx] = 0.0
            if tx == 0 and bx == 0:
                Y[bx] = w[0]

    with interpret(sanitize=True) as run:
        assert first_block()().tolist() == [1, 0]
    assert run.reports == []


@pytest.mark.parametrize("written", [True, False])
def test_a_named_value_is_read_where_it_is_chosen(written):
    """As if it stood in the choice itself, which is what compilers make of it."""

    @jit_kernel(out_idx=[1], threads=32)
    def chosen(X: T.Tensor((32,), "float32"), Y: T.Tensor((2, 32), "float32")):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((32,), "float32")
            if bx == 0 and written:
                T.copy(X, s)
            for i in T.Parallel(32):
                own = s[i] * 2.0
                half = T.if_then_else(i < 16, own, 1.0)
                Y[bx, i] = T.if_then_else(bx == 0, half, 3.0)

    x = torch.randn(32)
    with interpret(sanitize=True) as run:
        y = chosen()(x)
    if written:
        assert torch.equal(y, torch.stack([torch.cat([x[:16] * 2, torch.ones(16)]), y[1]]))
        assert torch.equal(y[1], torch.full((32,), 3.0))
        assert run.reports == []
    else:
        assert {report.block for report in run.reports} == {(0,)}


def test_a_tile_may_read_past_its_sequence_unless_that_is_asked_for():
    assert packed_run(0, sanitize=True) == []
    reports = packed_run(0, sanitize={"overreads"})
    assert [(r.sanitizer, r.buffer, r.index) for r in reports] == [("overreads", "X", (20,))]
    assert "row 20 of sequence 1, by a block of sequence 0" in reports[0].message


def test_the_sequence_of_a_block_can_be_declared():
    boundaries = (0, 32, 64, 96)

    def of_block(bx, by):
        return (bx + 1) % 3 if by == 0 else bx

    declared = {"Y": Sequences(boundaries, of_block=of_block)}
    with interpret(sanitize={"sequences"}, sequences=declared) as run:
        overlapping()(torch.ones(96))
    (report,) = run.reports
    assert (report.block, report.index) == ((0, 0), (0,))
    assert "row 0 of sequence 0, by a block of sequence 1" in report.message


def test_whose_rows_can_be_told_by_tensor():
    x, y = torch.ones(96), torch.zeros(96)

    def whose(name, tensor):
        return Sequences(tuple(CU.tolist())) if tensor.data_ptr() == y.data_ptr() else None

    with interpret(sanitize={"sequences"}, sequences=whose) as run:
        packed_rows(1)(x, CU.clone(), y)
    assert [(r.buffer, r.index) for r in run.reports] == [("Y", (20,))]


@pytest.mark.parametrize("packed", [["X", "Y", "Of"], ["X", "Y"]], ids=["of rows", "of sequences"])
def test_numbers_that_equal_the_starts_of_sequences_by_chance_are_none(packed):
    """Two sequences of one row: the number of each row's sequence is where that begins, too."""
    cu, numbers = (torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 2], [0, 1]))

    @jit_kernel(X="f32[2]", Cu="i32[3]", Of="i32[2]", Y="f32[2]", name="main", threads=32)
    def first_of_two(X, Cu, Of, Y):
        with T.Kernel(2) as b:
            if Of[0] == 0:
                Y[Cu[b]] = X[Cu[b]]

    with interpret(sanitize=True, sequences=dict.fromkeys(packed, cu)) as run:
        first_of_two()(torch.ones(2), cu.clone(), numbers, torch.zeros(2))
    assert run.reports == []


NOBODY = 0x7FDBADC5  # a NaN that no arithmetic makes


def partly_blank(*blank):
    tensor = torch.ones(8)
    tensor.view(torch.int32)[list(blank)] = NOBODY
    return tensor


def poisoned_run(make, *tensors):
    with interpret(sanitize=True, on_report="keep", poison={torch.float32: NOBODY}) as run:
        make()(*tensors)
    return [(r.sanitizer, r.buffer, r.index, r.count) for r in run.reports]


# Copies all of X to a tile, and uses `used` elements of it.
@jit_kernel(X="f32[8]", Y="f32[8]", name="main", threads=32)
def through_a_tile(X, Y, used):
    tile = T.alloc_shared((8,), "float32")
    T.copy(X, tile)
    for i in T.Parallel(8):
        if i < used:
            Y[i] = tile[i] + 1.0


@jit_kernel(X="f32[8]", Y="f32[8]", name="main")
def element_by_element(X, Y):
    with T.Kernel(8, threads=32) as b:
        Y[b] = X[b] + 1.0


def test_elements_with_the_bits_of_poison_count_as_unwritten():
    assert poisoned_run(element_by_element, torch.ones(8), torch.empty(8)) == []
    found = poisoned_run(element_by_element, partly_blank(2, 5), torch.empty(8))
    assert found == [("uninitialised", "X", (2,), 2)]


def test_a_copy_of_poison_is_not_yet_a_read():
    assert poisoned_run(partial(through_a_tile, 5), partly_blank(5, 7), torch.zeros(8)) == []
    found = poisoned_run(partial(through_a_tile, 6), partly_blank(5, 7), torch.zeros(8))
    assert found == [("uninitialised", "tile", (5,), 1)]


def test_only_what_holds_poison_must_be_written():
    assert poisoned_run(partial(through_a_tile, 5), torch.ones(8), partly_blank(1, 4)) == []
    found = poisoned_run(partial(through_a_tile, 5), torch.ones(8), partly_blank(1, 6, 7))
    assert found == [("unwritten", "Y", (6,), 1)]
    with interpret(sanitize=True, on_report="keep") as run:
        through_a_tile(5)(torch.ones(8), torch.zeros(8))
    assert [r.sanitizer for r in run.reports] == ["unwritten"]


@pytest.mark.parametrize("boundaries", [[3, 1], [0.0, 1.0], [[0, 1]]])
def test_sequences_that_are_none_are_refused(boundaries):
    with (
        pytest.raises(ValueError, match="must be boundaries"),
        interpret(sanitize=True, sequences={"q": boundaries}),
    ):
        pass


@jit_kernel(X="f32[32]", Y="f32[32]", name="main", out_idx=[1], threads=32)
def logarithms(X, Y):
    for i in T.Parallel(32):
        Y[i] = T.if_then_else(X[i] == 0.0, -T.infinity("float32"), T.log(X[i]))


def test_an_infinity_that_the_kernel_names_is_meant():
    x = torch.ones(32)
    x[3] = 0.0
    with interpret(sanitize=True) as run:
        logarithms()(x)
    assert run.reports == []


def test_nan_of_an_input_is_not_born_in_the_kernel():
    x = torch.ones(32)
    x[3] = float("nan")
    with interpret(sanitize=True) as run:
        logarithms()(x)
    assert run.reports == []


@jit_kernel(X="f32[4]", Y="f32[1]", name="main")
def added_up(X, Y):
    with T.Kernel(4, threads=1) as bx:
        T.atomic_add(Y[0], 1.0 / X[bx])


def test_the_traced_run_leaves_the_results_as_they_are():
    y = torch.full((1,), 5.0)
    with interpret(sanitize=True) as run:
        added_up()(torch.tensor([1.0, 0.0, 1.0, 1.0]), y)
    (report,) = run.reports
    assert (report.sanitizer, report.block) == ("nonfinite", (1,))
    assert y.item() == float("inf")
    with interpret(sanitize=True) as run:
        y.fill_(5.0)
        added_up()(torch.ones(4), y)
    assert run.reports == []
    assert y.item() == 9.0


@jit_kernel(X="f32[10, 8]", name="main", threads=32)
def laid_out(X):
    T.annotate_layout({X: T.Layout((10, 8), lambda i, j: [i // 8, j, i % 8])})
    for i, j in T.Parallel(10, 8):
        X[i, j] = 1.0  # stored


def test_a_layout_past_its_allocation_is_reported_and_raised():
    with interpret(sanitize=True) as run, pytest.raises(InterpreterError, match="layout annotated"):
        laid_out()(torch.zeros(10, 8))
    (report,) = run.reports
    assert (report.sanitizer, report.buffer) == ("budget", "X")
    assert report.line == line_of(laid_out, "# stored")


@jit_kernel(X="f16[32, 32]", Y="f32[32, 32]", name="main", out_idx=[1], threads=128)
def gemm_past_its_tile(X, Y):
    a = T.alloc_shared((32, 32), "float16")
    c = T.alloc_fragment((32, 32), "float32")
    T.copy(X, a)
    T.clear(c)
    T.gemm(a[16:48, 0:32], a, c)  # product
    T.copy(c, Y)


def test_what_cannot_go_on_is_reported_before_it_is_raised():
    with interpret(sanitize=True) as run, pytest.raises(InterpreterError, match="out of bounds"):
        gemm_past_its_tile()(torch.ones(32, 32).half())
    report = run.reports[0]
    assert (report.sanitizer, report.buffer, report.index) == ("bounds", "a", (32, 0))
    assert report.line == line_of(gemm_past_its_tile, "# product")


@jit_kernel(X="f32[2, 64]", Y="f32[2, 8]", name="main", out_idx=[1])
def reshaped(X, Y, rows):
    with T.Kernel(2, threads=32) as bx:
        flat = T.alloc_shared((64,), "float32")
        total = T.alloc_fragment((8,), "float32")
        square = T.reshape(flat, (8, 8))
        for i, j in T.Parallel(rows, 8):
            square[i, j] = X[bx, i * 8 + j]
        tile = T.alloc_fragment((8, 8), "float32")
        for i, j in T.Parallel(8, 8):
            tile[i, j] = flat[i * 8 + j]  # read
        T.reduce_sum(tile, total, dim=1)
        T.copy(total, Y[bx, 0:8])


@pytest.mark.parametrize("rows", [7, 8])
def test_a_view_shares_what_is_known_of_its_memory(rows):
    with interpret(sanitize=True) as run:
        reshaped(rows)(torch.ones(2, 64))
    found = [(r.sanitizer, r.buffer, r.index, r.block, r.count) for r in run.reports]
    assert found == ([] if rows == 8 else [("uninitialised", "flat", (56,), (0,), 2)])


@jit_kernel(X="f32[32]", Y="f32[32]", name="main", out_idx=[1], threads=32)
def private(X, Y):
    own = T.alloc_local((2,), "float32")
    last = T.alloc_var("float32")
    for i in T.Parallel(32):
        own[0] = X[i]
        own[1] = own[0] + 1.0
        last = 3.0
        Y[i] = own[1]
    for i in T.Parallel(32):
        Y[i] = Y[i] + last


def test_memory_of_single_lanes_is_written_by_its_loop():
    with interpret(sanitize=True) as run:
        private()(torch.ones(32))
    assert run.reports == []


@jit_kernel(Y="f32[1]", name="main", out_idx=[0], threads=32)
def variable_without_a_value(Y):
    x = T.alloc_var("float32")
    Y[0] = x  # read


def test_a_variable_read_before_it_is_set_is_reported():
    with interpret(sanitize=True) as run:
        variable_without_a_value()()
    report = run.reports[0]
    assert (report.sanitizer, report.buffer) == ("uninitialised", "x")
    assert report.line == line_of(variable_without_a_value, "# read")


@jit_kernel(X="f32[128]", Y="f32[128]", name="main")
def shifted(X, Y, by):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            Y[bx * 32 + i] = X[T.min(bx * 32 + i + by, 127)] + 1.0


@pytest.mark.parametrize("by", [0, 1])
def test_parameters_that_are_one_tensor_have_one_shadow(by):
    x = torch.ones(128)
    with interpret(sanitize=True) as run:
        shifted(by)(x, torch.ones(128))
        assert run.reports == []
        shifted(by)(x, x)
    assert {r.sanitizer for r in run.reports} == ({"races"} if by else set())


def test_the_traced_run_keeps_parameters_that_are_one_tensor_together():
    x = torch.full((128,), 3e38)
    with interpret(sanitize={"nonfinite"}) as run:
        shifted(0)(x, x)
        assert run.reports == []
        x.fill_(float("inf"))
        shifted(0)(x, x)
    assert run.reports == []


@jit_kernel(Y="f32[16]", name="main", out_idx=[0], threads=32)
def past_a_fragment(Y):
    f = T.alloc_fragment((16,), "float32")
    for i in T.Parallel(32):
        f[i] = 1.0
    T.copy(f, Y)


def test_fragments_can_be_tolerated_alone():
    with interpret(sanitize=DEFAULT_SANITIZERS - {"fragments"}) as run:
        assert past_a_fragment()().tolist() == [1.0] * 16
    assert run.reports == []


def test_without_the_sanitizers_of_bounds_outside_stays_an_error():
    with interpret(sanitize={"races"}), pytest.raises(InterpreterError, match="out of bounds"):
        past_a_fragment()()


@jit_kernel(X="f32[4, 32]", Y="f32[4]", name="main", out_idx=[1], threads=32)
def reduced(X, Y):
    total = T.alloc_reducer((4,), "float32", op="sum")
    result = T.alloc_fragment((4,), "float32")
    T.reducer_init(total)
    for i, j in T.Parallel(4, 32):
        T.reducer_update(total[i], X[i, j])
    T.finalize_reducer(total, result)
    T.copy(result, Y)


def test_lanes_that_contribute_to_a_reducer_are_no_finding():
    with interpret(sanitize=True) as run:
        assert reduced()(torch.ones(4, 32)).tolist() == [32.0] * 4
    assert run.reports == []


@jit_kernel(X="f32[32]", Y="f32[32]", name="main", threads=32)
def copied_in_part(X, Y):
    half = T.alloc_fragment((32,), "float32")
    copied = T.alloc_fragment((32,), "float32")
    total = T.alloc_fragment((32,), "float32")
    for i in T.Parallel(16):
        half[i] = X[i]
    T.copy(half, copied)
    for i in T.Parallel(32):
        total[i] = copied[i]
    T.copy(total, Y)


def test_only_a_buffer_that_may_be_uninitialized_is_followed():
    x = torch.ones(32)
    with interpret(sanitize=True, on_report="keep") as run:
        kernel = copied_in_part()
        kernel(x, torch.zeros(32))
        source = kernel.variant(run).program.source
    assert [report.buffer for report in run.reports] == ["copied"]
    assert "watch.local('half'" in source
    assert "watch.local('copied'" in source
    assert "watch.local('total'" not in source
