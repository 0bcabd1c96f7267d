"""Loops, branches, variables, grids."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpreterError

pytestmark = pytest.mark.usefixtures("interpreted")


def test_branches_in_a_parallel_loop():
    @jit_kernel(out_idx=[-1], threads=128)
    def branches(X: T.Tensor((40, 64), "float32"), Y: T.Tensor((40, 64), "float32")):
        for i, j in T.Parallel(40, 64):
            if i + 3 < j:
                Y[i, j] = X[i, j] * 2.0
            elif X[i, j] > 0.5:
                Y[i, j] = 7.0
            else:  # noqa: PLR5501  # a nested branch is the point
                if j % 2 == 0:
                    Y[i, j] = -1.0
                else:
                    Y[i, j] = X[i, j]

    x = torch.randn(40, 64)
    i, j = torch.arange(40)[:, None], torch.arange(64)[None, :]
    low = torch.where(j % 2 == 0, torch.tensor(-1.0), x)
    expected = torch.where(i + 3 < j, x * 2, torch.where(x > 0.5, torch.tensor(7.0), low))
    assert torch.equal(branches()(x), expected)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 200])
def test_a_uniform_guard_is_right_on_every_side_of_a_tile(length):
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1])
    def guarded(X: T.Tensor((n,), "float32"), limit: T.int32, Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < limit:
                    Y[bx * 64 + i] = T.if_then_else(bx * 64 + i >= 10, X[bx * 64 + i], 5.0)
                else:
                    Y[bx * 64 + i] = -1.0

    x = torch.randn(200)
    got = guarded()(x, length)
    k = torch.arange(200)
    expected = torch.where(
        k < length, torch.where(k >= 10, x, torch.tensor(5.0)), torch.tensor(-1.0)
    )
    assert torch.equal(got, expected)


def test_serial_loops_while_and_variables():
    @jit_kernel(out_idx=[-1])
    def collatz(X: T.Tensor((32,), "int32"), Y: T.Tensor((32, 3), "int32")):
        with T.Kernel(32, threads=32) as bx:
            n = T.alloc_var("int32")
            steps = T.alloc_var("int32", init=0)
            total = T.alloc_var("int32", init=0)
            n = X[bx]
            while n != 1:
                if n % 2 == 0:  # noqa: SIM108  # a branch is the point
                    n = n // 2
                else:
                    n = n * 3 + 1
                steps = steps + 1
            for k in T.serial(2, 20, 3):
                if k > 12:
                    break
                total = total + k
            Y[bx, 0] = steps
            Y[bx, 1] = total
            Y[bx, 2] = n

    x = torch.arange(1, 33, dtype=torch.int32)

    def steps(n):
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else n * 3 + 1
            count += 1
        return count

    got = collatz()(x)
    assert got[:, 0].tolist() == [steps(n) for n in range(1, 33)]
    assert got[:, 1].tolist() == [2 + 5 + 8 + 11] * 32
    assert got[:, 2].tolist() == [1] * 32


def test_a_loop_by_lane_with_local_variables():
    @jit_kernel(out_idx=[-1], threads=32)
    def triangular(N: T.Tensor((16,), "int32"), Y: T.Tensor((16, 2), "float32")):
        total = T.alloc_var("float32")
        pair = T.alloc_local([2], "float32")
        for i in T.Parallel(16):
            total = 0.0
            pair[0] = 1.0
            pair[1] = 0.0
            for k in T.serial(N[i]):
                total = total + k
                pair[1] = pair[1] + pair[0]
            Y[i, 0] = total
            Y[i, 1] = pair[1]

    n = torch.randint(0, 9, (16,), dtype=torch.int32)
    got = triangular()(n)
    assert got[:, 0].tolist() == [float(v * (v - 1) // 2) for v in n.tolist()]
    assert got[:, 1].tolist() == [float(v) for v in n.tolist()]


def test_a_while_loop_that_ends_lane_by_lane():
    @jit_kernel(out_idx=[-1], threads=32)
    def halve(X: T.Tensor((16,), "int32"), Y: T.Tensor((16,), "int32")):
        n = T.alloc_var("int32")
        steps = T.alloc_var("int32")
        for i in T.Parallel(16):
            n = X[i]
            steps = 0
            while n > 0:
                n = n // 2
                steps = steps + 1
            Y[i] = steps

    x = torch.randint(0, 5000, (16,), dtype=torch.int32)
    assert halve()(x).tolist() == [int(v).bit_length() for v in x]


def test_nested_parallel_loops_of_different_depth():
    @jit_kernel(out_idx=[-1], threads=32)
    def nested(X: T.Tensor((8, 12), "float32"), Y: T.Tensor((8, 13), "float32")):
        for i in T.Parallel(8):
            Y[i, 12] = X[i, 0]
            for j in T.Parallel(12):
                Y[i, j] = X[i, j] + X[i, 0]

    x = torch.randn(8, 12)
    assert torch.equal(nested()(x), torch.cat([x + x[:, :1], x[:, :1]], 1))


def test_a_grid_of_three_dynamic_dimensions_and_let_bindings():
    @jit_kernel(X="i32[a, b, c]", Y="i32[a, b, c]", out_idx=[-1])
    def grid(X, Y):
        a, b, c = X.shape
        with T.Kernel(c, b, a, threads=32) as (bx, by, bz):
            value = X[bz, by, bx]
            twice = value * 2
            Y[bz, by, bx] = twice + bx + 10 * by + 100 * bz

    x = torch.randint(0, 50, (3, 4, 5), dtype=torch.int32)
    index = torch.arange(5) + 10 * torch.arange(4)[:, None] + 100 * torch.arange(3)[:, None, None]
    assert torch.equal(grid()(x), (x * 2 + index).int())


def test_several_launches_in_one_function_see_each_other():
    @jit_kernel(X="f32[64]", W="f32[64]", Y="f32[64]", out_idx=[-1])
    def chained(X, W, Y):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((32,), "float32")
            T.copy(X[bx * 32], s)
            for i in T.Parallel(32):
                W[bx * 32 + i] = s[i] + 1.0
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = W[63 - i] * 2.0

    x, w = torch.randn(64), torch.empty(64)
    assert torch.equal(chained()(x, w), (x.flip(0) + 1) * 2)


def test_persistent_and_pipelined_loops():
    @jit_kernel(out_idx=[-1])
    def persistent(X: T.Tensor((96, 64), "float32"), Y: T.Tensor((96, 64), "float32")):
        with T.Kernel(4, threads=128) as block:
            s = T.alloc_shared((16, 16), "float32")
            for bx, by in T.Persistent([6, 4], 4, block):
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(X[bx * 16, by * 16], s)
                    for i, j in T.Parallel(16, 16):
                        s[i, j] = s[i, j] + k
                    T.copy(s, Y[bx * 16, by * 16])

    x = torch.randn(96, 64)
    assert torch.equal(persistent()(x), x + 1)


def test_unrolled_and_vectorized_loops():
    @jit_kernel(out_idx=[-1], threads=32)
    def unrolled(X: T.Tensor((8, 4), "float32"), Y: T.Tensor((8, 4), "float32")):
        for i in T.Parallel(8):
            for v in T.vectorized(4):
                Y[i, v] = X[i, v] * 2.0
        for u in T.unroll(3):
            Y[u, 0] = 9.0

    x = torch.randn(8, 4)
    expected = x * 2
    expected[:3, 0] = 9
    assert torch.equal(unrolled()(x), expected)


def test_a_workspace_in_global_memory_is_seen_by_all_blocks():
    @jit_kernel(out_idx=[-1])
    def workspace(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
        with T.Kernel(4, threads=32) as bx:
            w = T.alloc_global((4,), "float32")
            w[bx] = X[bx]
            if bx == 3:
                for i in T.Parallel(4):
                    Y[i] = w[i]

    x = torch.randn(4)
    assert torch.equal(workspace()(x), x)


def test_a_binding_keeps_the_value_a_variable_had():
    @jit_kernel(out_idx=[-1], threads=32)
    def fibonacci(Y: T.Tensor((10,), "int32")):
        a = T.alloc_var("int32", init=0)
        b = T.alloc_var("int32", init=1)
        for k in T.serial(10):
            old: T.int32 = a
            Y[k] = old
            a = b
            b = old + b

    assert fibonacci()().tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_an_assumption_that_does_not_hold_is_an_error_that_quotes_it():
    """A compiler drops guards on the strength of it, so false it may do anything on a GPU."""

    @jit_kernel(out_idx=[-1], threads=64)
    def assuming(starts: T.Tensor((2,), "int32"), Y: T.Tensor((64,), "int32")):
        start = starts[0]
        T.assume(start >= 0)
        T.assume(start + 4 <= starts[1])
        for i in T.Parallel(64):
            Y[i] = start + i

    kernel = assuming()
    assert kernel(torch.tensor([2, 6], dtype=torch.int32))[0] == 2
    with pytest.raises(InterpreterError, match=r"T.assume\(.*0.*\) does not hold"):
        kernel(torch.tensor([-1, 6], dtype=torch.int32))
    with pytest.raises(InterpreterError, match=r"T.assume\(start \+ 4 <= starts\[1\]\)"):
        kernel(torch.tensor([3, 6], dtype=torch.int32))


@pytest.mark.parametrize(("limit", "holds"), [(8, True), (9, False)])
def test_assertions_and_assumptions_are_of_the_lanes_that_get_there(limit, holds):
    @jit_kernel(out_idx=[-1], threads=64)
    def asserting(limit: T.int32, Y: T.Tensor((64,), "int32")):
        for i in T.Parallel(64):
            if i < limit:
                T.assume(i < 8)
                T.device_assert(i < 8)
                Y[i] = i
            else:
                Y[i] = 0

    kernel = asserting()
    if holds:
        assert kernel(limit).sum() == 28
    else:
        with pytest.raises(InterpreterError, match="does not hold"):
            kernel(limit)
