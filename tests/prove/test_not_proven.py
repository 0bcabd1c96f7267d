"""What does not hold is not proven: kernels of which a proof was wrong, or would have been."""

import pytest
import tilelang.language as T
import torch
from kernels_proven import answers, fresh, offsets

from jit_kernel import jit_kernel
from tlmatrix.interpreter import traced
from tlmatrix.prove.kernels import prove_kernel
from tlmatrix.prove.launches import Observer


def _answers(kernel, *more, sizes=(5, 70)):
    """The proofs of a kernel of `X` and `Y`, both of n floats, and `more`."""
    calls = [
        lambda n=n: kernel()(torch.zeros(n), fresh(n), *(each(n) for each in more)) for n in sizes
    ]
    return answers(*calls)


UNKNOWN = []


def unknown(proof):
    """A kernel of `X` and `Y`, both of n floats, of which this is not proven."""

    def register(function):
        kernel = jit_kernel(function, X="f32[n]", Y="f32[n]")
        UNKNOWN.append(pytest.param(kernel, proof, id=function.__name__))
        return function

    return register


@unknown("coverage of Y")
def moved_by_a_loop(X, Y):
    """An unknown shift of a tile is no choice of the proof."""
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 8), threads=32) as b:
        v = T.alloc_var("int32")
        v = 0
        for _ in T.serial(2):
            v = b
        for i in T.Parallel(8):
            Y[b * 8 + v + i] = 1.0


@jit_kernel(X="f32[n]", Y="f32[n]", N="i32[n]")
def moved_in_a_branch(X, Y, N):
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        v = T.alloc_var("int32")
        v = 0
        if n > 3:
            v = N[b]
        N[0] = 0
        if v + b >= 0 and v + b < n:
            Y[v + b] = 1.0


def test_blocks_differ_in_a_value_that_is_unknown_after_a_branch():
    found = _answers(moved_in_a_branch, lambda n: torch.zeros(n, dtype=torch.int32))
    assert found["races of Y"].answer == "unknown"
    assert found["coverage of Y"].answer == "unknown"


@unknown("coverage of Y")
def trips_unknown(X, Y):
    """A loop of unknown trips covers nothing."""
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 8), threads=32) as b:
        trips = T.alloc_var("int32")
        trips = 8
        for _ in T.serial(3):
            trips = trips - 1
        for k in T.serial(trips):
            Y[b * 8 + k] = 1.0


@unknown("races of Y")
def told_by_one_thread(X, Y):
    """What one thread stores to shared memory others read."""
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        told = T.alloc_shared((1,), "int32")
        told[0] = b
        thread = T.get_thread_binding()
        if thread == 5:
            told[0] = 0
        T.sync_threads()
        if thread == 0:
            Y[told[0]] = 1.0


@unknown("races of Y")
def counted(X, Y):
    """An atomic changes an integer that is followed."""
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        count = T.alloc_shared((2,), "int32")
        count[0] = b
        for i in T.Parallel(2):
            T.atomic_add(count[i], 1 - b)
        Y[count[0]] = 1.0


@unknown("races of Y")
def viewed(X, Y):
    """A view changes an integer that is followed."""
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        flat = T.alloc_shared((4,), "int32")
        square = T.reshape(flat, (2, 2))
        flat[1] = b
        square[0, 1] = 0
        Y[flat[1]] = 1.0


@jit_kernel(X="f32[n]", Y="f32[n]")
def narrowed(X, Y):
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        small = T.cast(b, "uint8")
        Y[T.cast(small, "int32")] = 1.0


def test_a_cast_to_few_bits_keeps_the_low_ones():
    found = _answers(narrowed, sizes=(5, 300))
    assert found["races of Y"].answer == "unknown"
    assert found["coverage of Y"].answer == "unknown"


@unknown("races of Y")
def from_the_end(X, Y):
    """A negative constant index counts from the end."""
    n = X.shape[0]
    with T.Kernel(2, threads=32) as b:
        for i in T.serial(n):
            if b == 0:
                Y[i] = 1.0
        if b == 1:
            Y[-1] = 2.0


@unknown("races of Y")
def added_and_read(X, Y):
    """A read beside the atomic of another block is a race."""
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        for i in T.Parallel(1):
            T.atomic_add(Y[b + i], Y[i])


@pytest.mark.parametrize("stride", [1, 0])
def test_iterations_of_a_block_that_add_to_one_element_round_in_any_order(stride):
    @jit_kernel(X="f32[n]", Y="f32[n]")
    def added(X, Y):
        n = X.shape[0]
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                T.atomic_add(Y[b * 32 + i * stride], X[b * 32 + i])

    expected = "proven" if stride else "unknown"
    assert _answers(added)["equal bits of Y"].answer == expected


@jit_kernel(X="f32[n, 4]", Y="f32[n, 4]")
def pairs(X, Y):
    n = X.shape[0]
    with T.Kernel(n, 2, threads=32) as (b, h):
        for i in T.Parallel(1):
            T.atomic_addx2(Y[b, h + i], X[b, h + i])


def test_an_atomic_of_two_elements_adds_to_the_second_as_well():
    found = answers(*[lambda n=n: pairs()(torch.zeros(n, 4), torch.zeros(n, 4)) for n in (3, 9)])
    assert found["equal bits of Y"].answer == "unknown"


@jit_kernel(X="f32[n]", Y="f32[n]", m="i32")
def many_blocks(X, Y, m):
    n = X.shape[0]
    with T.Kernel(n * m, threads=32) as b:
        Y[b // m] = 1.0


def test_the_size_of_a_grid_is_int32_arithmetic():
    calls = [lambda n=n: many_blocks()(torch.zeros(n), fresh(n), n + 1) for n in (5, 70)]
    assert "1048576" not in answers(*calls)["overflow"].subject


@jit_kernel(X="f32[total]", CU="i32[bounds]", Y="f32[total]")
def packed_with_a_tail(X, CU, Y):
    bounds, total = CU.shape[0], X.shape[0]
    with T.Kernel(bounds - 1, threads=32) as b:
        for i in T.serial(CU[b + 1] - CU[b]):
            Y[CU[b] + i] = 1.0
        Y[total - 1 - b] = 0.0


def test_rows_that_are_counted_from_no_sequence_are_not_those_of_the_block():
    def call(*lengths):
        n = sum(lengths)
        packed_with_a_tail()(torch.zeros(n), offsets(*lengths), fresh(n))

    found = answers(lambda: call(3, 4), lambda: call(1, 9, 2))["own sequence of Y"]
    assert found.answer == "unknown"
    assert "not counted from a sequence" in found.reason


@jit_kernel(out_idx=[1], X="f32[n]", CU="i32[n]")
def reversed_offsets(X, CU):
    n = X.shape[0]
    with T.Kernel(n, threads=32) as b:
        CU[b] = n - b


@jit_kernel(X="f32[total]", CU="i32[bounds]", Y="f32[total]")
def packed(X, CU, Y):
    bounds = CU.shape[0]
    with T.Kernel(bounds - 1, threads=32) as b:
        for i in T.serial(CU[b + 1] - CU[b]):
            Y[CU[b] + i] = 1.0


@pytest.mark.parametrize("by_a_kernel", [False, True])
def test_integers_that_a_kernel_computes_are_no_fact_where_it_did_not_run(by_a_kernel):
    """Zeros, which its output holds instead, never decrease."""
    observer = Observer("sm_90a")
    with traced(arch="sm_90a", on_launch=observer.on_launch):
        for n in (3, 5):
            x = torch.zeros(n)
            cu = reversed_offsets()(x) if by_a_kernel else torch.zeros(n, dtype=torch.int32)
            packed()(torch.zeros(7), cu[:], fresh(7))
    use = next(use for use in observer.uses() if use.name == "packed")
    found = {str(proof): proof.answer for proof in prove_kernel(use, {}).proofs}
    assert found["races of Y"] == ("unknown" if by_a_kernel else "proven")


@jit_kernel(STARTS="i32[groups]", SIZES="i32[groups]", Y="f32[n, 64]")
def tiles_of_groups(STARTS, SIZES, Y):
    """A tile of 64 rows goes over the end of a group that is shorter."""
    n = Y.shape[0]
    with T.Kernel(STARTS.shape[0], threads=64) as g:
        if SIZES[g] > 0:
            for i, j in T.Parallel(64, 64):
                if STARTS[g] + i < n:
                    Y[STARTS[g] + i, j] = 1.0


def test_a_constant_that_equals_the_last_start_by_chance_does_not_end_the_rows():
    """The second dim has as many columns as the first group has rows."""
    starts, sizes = torch.tensor([0, 64]).int(), torch.tensor([64, 128]).int()
    found = answers(lambda: tiles_of_groups()(starts, sizes, fresh(192, 64)))
    assert found["races of Y"].answer == "unknown"


@jit_kernel(N="i32[n]", SIZES="i32[4]", Y="f32[n]")
def scalar_search(N, SIZES, Y):
    """The last of four groups that begin before a block is found by a loop over scalars."""
    n = Y.shape[0]
    with T.Kernel(n, threads=32) as b:
        group = T.alloc_var("int32")
        group = 0
        for g in range(4):
            group = T.if_then_else(b * 4 >= SIZES[g], g, group)
        Y[T.min(b, group)] = 1.0


def test_a_loop_over_scalars_is_executed_as_it_stands():
    found = answers(
        *[
            lambda n=n: scalar_search()(
                torch.zeros(n).int(), torch.tensor([0, 4, 8, 40]).int(), fresh(n)
            )
            for n in (5, 70)
        ]
    )
    assert found["bounds of tables"].answer == "proven"
    assert found["races of Y"].answer == "unknown"


@unknown("races of Y")
def threads_count_apart(X, Y):
    """Each thread has the last of its own iterations, not that of the loop."""
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
        last = T.alloc_var("int32")
        last = 0
        for i in T.Parallel(32):
            last = i
        if b + last < n:
            Y[b + last] = 1.0


@unknown("races of Y")
def shifted_out(X, Y):
    """A shift loses high bits: blocks 0 and 16 have the same low four bits, of six."""
    n = X.shape[0]
    with T.Kernel(T.min(n, 64), threads=32) as b:
        high = T.shift_left(T.cast(b & 63, "uint8"), T.cast(4, "uint8"))
        Y[T.cast(T.shift_right(high, T.cast(4, "uint8")), "int32")] = 1.0


@pytest.mark.parametrize(("kernel", "proof"), UNKNOWN)
def test_what_does_not_hold_is_unknown(kernel, proof):
    assert _answers(kernel)[proof].answer == "unknown"
