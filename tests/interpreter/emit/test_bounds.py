"""TileLang's bounds rules: what is guarded, what reads zero, what is skipped, what is an error."""

import inspect

import pytest
import tilelang
import tilelang.language as T
import torch
from tilelang import tvm

from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpreterError

pytestmark = pytest.mark.usefixtures("interpreted")
GUARDS_OFF = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}


@jit_kernel(X="dtype[n]", shift="i32", Y="dtype[32]", name="main", out_idx=[-1], threads=32)
def shifted_load(X, shift, Y, dtype, safe=None):
    if safe is not None:
        T.annotate_safe_value({X: safe})
    for i in T.Parallel(32):
        Y[i] = X[i + shift]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("shift", [-40, -5, 0, 3, 10, 100])
def test_a_guarded_load_outside_reads_zero(dtype, shift):
    x = (torch.arange(20) + 1).to(getattr(torch, dtype))
    expected = [x[i + shift].item() if 0 <= i + shift < 20 else 0 for i in range(32)]
    assert shifted_load(dtype)(x, shift).tolist() == expected


def test_a_guarded_load_outside_reads_the_annotated_safe_value():
    got = shifted_load("float32", -7.0)(torch.ones(20), 3)
    assert got.tolist() == [1.0] * 17 + [-7.0] * 15


@pytest.mark.parametrize("shift", [-5, 0, 9, 50])
def test_a_guarded_store_outside_is_skipped(shift):
    n = T.dynamic("n")

    @jit_kernel(threads=32)
    def store(Y: T.Tensor((n,), "float16"), shift: T.int32):
        for i in T.Parallel(8):
            Y[i + shift] = 1.0

    y = torch.zeros(12).half()
    store()(y, shift)
    assert y.tolist() == [1.0 if 0 <= k - shift < 8 else 0.0 for k in range(12)]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (-3, -3), (10, 20), (14, 30), (40, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_copy_is_predicated_on_both_sides(row, column, dtype):
    @jit_kernel(X="dtype[m, n]", Y="dtype[m, n]", r="i32", c="i32", S="dtype[16, 16]", name="main")
    def through(X, Y, r, c, S):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((16, 16), dtype)
            T.copy(X[r : r + 16, c : c + 16], s)
            T.copy(s, S)
            T.copy(s, Y[r : r + 16, c : c + 16])

    x = (torch.randn(20, 33) + 5).to(getattr(torch, dtype))
    y = torch.zeros_like(x)
    s = torch.empty(16, 16, dtype=x.dtype)
    through()(x, y, row, column, s)
    padded = torch.zeros(100, 110, dtype=x.dtype)
    padded[10:30, 10:43] = x
    expected = padded[10 + row : 26 + row, 10 + column : 26 + column]
    assert torch.equal(s, expected)
    back = torch.zeros_like(padded)
    back[10 + row : 26 + row, 10 + column : 26 + column] = expected
    assert torch.equal(y, back[10:30, 10:43])


def test_a_copy_into_a_shared_tile_that_is_too_small_skips_the_rest():
    @jit_kernel(out_idx=[-1], threads=32)
    def narrow(X: T.Tensor((16,), "float32"), o: T.int32, Y: T.Tensor((16,), "float32")):
        s = T.alloc_shared((16,), "float32")
        T.fill(s, -1)
        T.copy(X[0:8], s[o : o + 8])
        T.copy(s, Y)

    x = torch.randn(16)
    got = narrow()(x, 12)
    assert torch.equal(got[12:], x[:4])
    assert got[:12].eq(-1).all()


def test_a_loaded_index_is_guarded_element_by_element():
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1], threads=32)
    def gather(
        X: T.Tensor((n, 4), "float16"),
        Index: T.Tensor((8,), "int32"),
        Y: T.Tensor((8, 4), "float16"),
    ):
        for i, j in T.Parallel(8, 4):
            Y[i, j] = X[Index[i], j]

    x = torch.randn(5, 4).half()
    index = torch.tensor([0, 4, 5, -1, 100, 2, -100, 3], dtype=torch.int32)
    expected = torch.stack([x[k] if 0 <= k < 5 else torch.zeros(4).half() for k in index.tolist()])
    assert torch.equal(gather()(x, index), expected)


def test_a_scalar_load_outside_reads_zero():
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1])
    def scalar(C: T.Tensor((n,), "int32"), Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            length = C[bx + 1] - C[bx]
            Y[bx] = length

    assert scalar()(torch.tensor([3, 5, 9], dtype=torch.int32)).tolist() == [2, 4, -9, 0]


def line_of(function, text):
    """The line of `text` in this file, searched from the start of a function."""
    lines, start = inspect.getsourcelines(function)
    return start + next(k for k, line in enumerate(lines) if text in line)


def check_error(error, function, text, *words):
    message = str(error.value)
    assert f"{__file__}:{line_of(function, text)}" in message
    for word in words:
        assert word in message


def test_without_guards_a_load_outside_is_an_error_that_names_the_line():
    n = T.dynamic("n")

    @jit_kernel(pass_configs=GUARDS_OFF, out_idx=[-1], threads=32)
    def unguarded(X: T.Tensor((n,), "float32"), Y: T.Tensor((32,), "float32")):
        for i in T.Parallel(32):
            Y[i] = X[i]  # the bad line

    with pytest.raises(InterpreterError) as error:
        unguarded()(torch.ones(20))
    here = test_without_guards_a_load_outside_is_an_error_that_names_the_line
    check_error(error, here, "# the bad line", "X[0:32]", "(20,)", "in kernel unguarded")


def test_a_constant_index_is_not_guarded():
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1], threads=32)
    def constant(X: T.Tensor((n,), "float32"), Y: T.Tensor((1,), "float32")):
        Y[0] = X[7]  # the bad line

    assert constant()(torch.arange(8.0)).item() == 7.0
    with pytest.raises(InterpreterError) as error:
        constant()(torch.arange(7.0))
    check_error(error, test_a_constant_index_is_not_guarded, "# the bad line", "X", "7")


@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_shared_and_fragment_memory_outside_is_an_error(scope):
    alloc = T.alloc_shared if scope == "shared" else T.alloc_fragment

    @jit_kernel(out_idx=[-1], threads=32)
    def outside(shift: T.int32, Y: T.Tensor((16,), "float32")):
        s = alloc((16,), "float32")
        T.clear(s)
        for i in T.Parallel(16):
            Y[i] = s[i + shift]  # the bad line

    assert outside()(0).eq(0).all()
    for shift in (-1, 1):
        with pytest.raises(InterpreterError) as error:
            outside()(shift)
        here = test_shared_and_fragment_memory_outside_is_an_error
        check_error(error, here, "# the bad line", f"s[{shift}:{16 + shift}]", "(16,)")


def test_a_branch_that_is_not_taken_reads_nothing():
    @jit_kernel(out_idx=[-1], threads=32)
    def lazy(Y: T.Tensor((32,), "float32"), Z: T.Tensor((32,), "float32")):
        s = T.alloc_shared((16,), "float32")
        T.fill(s, 3)
        for i in T.Parallel(32):
            Y[i] = T.if_then_else(i < 16, s[i], -1.0)
        for i in T.Parallel(32):
            if i >= 16:
                Z[i] = s[i - 16]
            else:
                Z[i] = 0.0

    z = lazy()(y := torch.empty(32))
    assert y.tolist() == [3.0] * 16 + [-1.0] * 16
    assert z.tolist() == [0.0] * 16 + [3.0] * 16


def test_a_lane_that_is_outside_is_named():
    @jit_kernel(out_idx=[-1], threads=32)
    def lane(Index: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "float32")):
        s = T.alloc_shared((4,), "float32")
        T.clear(s)
        for i in T.Parallel(8):
            Y[i] = s[Index[i]]

    index = torch.tensor([0, 1, 2, 3, 9, 0, 0, 0], dtype=torch.int32)
    with pytest.raises(InterpreterError, match=r"s\[9\]"):
        lane()(index)


def test_integer_division_by_zero_is_an_error():
    @jit_kernel(out_idx=[-1])
    def divide(d: T.int32, Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            Y[bx] = 100 // d

    assert divide()(7).tolist() == [14] * 4
    with pytest.raises(InterpreterError, match="division by zero"):
        divide()(0)


def test_what_is_provably_negative_counts_from_the_end():
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1])
    def last(X: T.Tensor((n,), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32) as bx:
            T.fill(Y, 0.0)
            Y[0] = X[bx - 1]
            for i in T.Parallel(2):
                Y[1 + i] = X[i - 3]
            T.copy(X[bx * 4 - 3], Y[4:8])

    x = torch.arange(1.0, 11)
    # The tile starts three from the end and its fourth element is outside.
    assert last()(x).tolist() == [10, 8, 9, 0, 8, 9, 10, 0]


def test_what_a_condition_proves_negative_counts_from_the_end():
    @jit_kernel(X="f32[10]", Y="f32[24]", name="main", out_idx=[-1])
    def last(X, Y, condition):
        with T.Kernel(3, threads=32) as bx:
            T.fill(Y[bx * 8 : bx * 8 + 8], 0.0)
            if condition(bx):
                T.copy(X[bx * 4 - 3], Y[bx * 8 : bx * 8 + 4])
                Y[bx * 8 + 4] = X[bx - 1]
            else:
                Y[bx * 8 + 5] = X[bx - 2]
                for i in T.Parallel(2):
                    Y[bx * 8 + 6 + i] = X[bx + i - 9]

    x = torch.arange(1.0, 11)
    for condition in (lambda b: b < 1, lambda b: b == 0, lambda b: T.And(b >= 0, b <= 0)):
        y = last(condition)(x).view(3, 8).tolist()
        assert y[0] == [8, 9, 10, 0, 10, 0, 0, 0]
        # What is not proven negative is guarded: `bx - 2` of the blocks 1 and 2.
        assert y[1:] == [[0, 0, 0, 0, 0, 0, 3, 4], [0, 0, 0, 0, 0, 1, 4, 5]]
    y = last(lambda b: b != 0)(x).view(3, 8).tolist()
    assert y[:2] == [[0, 0, 0, 0, 0, 9, 2, 3], [2, 3, 4, 5, 1, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["if_then_else", "Select", "branch"])
@pytest.mark.parametrize(
    ("condition", "index", "proven"),
    [
        (lambda b, i: b * 4 + i < 3, lambda b, i: b * 4 + i - 3, True),
        (lambda b, i: b * 4 + i <= 3, lambda b, i: b * 4 + i - 3, False),
        (lambda b, i: 2 * b + i < 2, lambda b, i: 2 * b + i - 3, True),
        (lambda b, i: b < i - 2, lambda b, i: b - i, True),
        (lambda b, i: i == 3 - b, lambda b, i: b + i - 4, True),
        (lambda b, i: i != 3 - b, lambda b, i: b + i - 4, False),
        (lambda b, _i: b % 3 == 0, lambda b, i: b * 4 + i - 4, True),
        (lambda b, _i: b % 2 == 1, lambda b, i: b * 4 + i - 8, True),
        (lambda b, _i: b % 2 == 0, lambda b, i: b * 4 + i - 8, False),
        (lambda b, i: i < b, lambda _b, i: i * 4 - 5, True),
        (lambda b, i: i <= b, lambda _b, i: i * 4 - 5, False),
    ],
)
def test_what_a_choice_proves_negative_counts_from_the_end(kind, condition, index, proven):
    """As `LegalizeNegativeIndex` of TileLang has it, to which a `T.Select` proves nothing."""
    choose = getattr(T, kind, None)

    @jit_kernel(out_idx=[-1])
    def chosen(X: T.Tensor((10,), "float32"), Y: T.Tensor((3, 4), "float32")):
        with T.Kernel(3, threads=32) as bx:
            for i in T.Parallel(4):
                if choose is not None:
                    Y[bx, i] = choose(condition(bx, i), X[index(bx, i)], T.float32(0.5))
                elif condition(bx, i):
                    Y[bx, i] = X[index(bx, i)]
                else:
                    Y[bx, i] = 0.5

    counts = proven and kind != "Select"
    kernel = chosen()
    func = kernel.prim_func
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
        module = tilelang.transform.LegalizeNegativeIndex()(tvm.IRModule({"main": func}))
    assert counts != tvm.ir.structural_equal(module["main"], func)

    def expected(b, i):
        at = index(b, i)
        if not condition(b, i):
            return 0.5
        return at + 1 if at >= 0 else at + 11 if counts else 0

    y = kernel(torch.arange(1.0, 11))
    assert y.tolist() == [[expected(b, i) for i in range(4)] for b in range(3)]


def test_an_index_that_a_grid_of_one_block_makes_constant_is_not_guarded():
    @jit_kernel(X="f32[4]", Y="f32[4]", name="main", out_idx=[-1])
    def beyond(X, Y, blocks):
        with T.Kernel(blocks, threads=32) as bx:
            Y[bx] = X[bx + 4]

    with pytest.raises(InterpreterError, match="at the constant index 4"):
        beyond(1)(torch.ones(4))
    assert beyond(2)(torch.ones(4))[:2].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_a_copy_of_one_element_is_guarded_too(dtype):
    @jit_kernel(X="dtype[4, 4]", Y="dtype[4, 4]", name="main")
    def one(X, Y, dtype):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((4, 4), dtype)
            T.fill(s, 7)
            T.copy(X[bx * 3 : bx * 3 + 1, bx * 4 : bx * 4 + 1], s[1:2, 1:2])
            T.copy(s[1:2, 1:2], Y[bx * 4 : bx * 4 + 1, 2:3])
            T.copy(s[1:2, 1:2], Y[bx * 3 : bx * 3 + 1, 3:4])

    x = torch.ones(4, 4).to(getattr(torch, dtype))
    y = torch.zeros_like(x)
    one(dtype)(x, y)
    want = torch.zeros_like(x)
    want[0, 2:] = 1
    assert torch.equal(y, want)
