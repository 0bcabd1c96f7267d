"""Call semantics: arguments are checked as TileLang checks them, outputs allocated and returned."""

import pytest
import tilelang
import tilelang.language as T
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jit_kernel import jit_kernel
from tlmatrix.interpreter import ArgumentError, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


m = T.dynamic("m")


@jit_kernel(A="f16[m, 8]", L="i32[m + 1]", s="f32", k="i32", Y="f32[m, 8]", out_idx=[-1])
def scaled(A, L, s, k, Y):
    with T.Kernel(T.ceildiv(m, 4), threads=32) as bx:
        for i, j in T.Parallel(4, 8):
            Y[bx * 4 + i, j] = A[bx * 4 + i, j] * s + k + L[bx * 4 + i + 1]


def arguments(m=6):
    return [torch.ones(m, 8).half(), torch.zeros(m + 1, dtype=torch.int32), 2.0, 3]


def test_outputs_are_allocated_and_returned():
    got = scaled()(*arguments())
    assert got.shape == (6, 8)
    assert got.dtype == torch.float32
    assert got.eq(5).all()


def test_one_kernel_serves_every_length():
    kernel = scaled()
    assert [tuple(kernel(*arguments(m)).shape) for m in (1, 4, 9)] == [(1, 8), (4, 8), (9, 8)]


def changed(position, value):
    found = arguments()
    found[position] = value
    return found


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (arguments()[:3], ArgumentError, ["expected 4 inputs", "3 are provided", "A, L, s, k"]),
        (changed(0, torch.ones(6, 8)), ArgumentError, ["A", "float16", "float32"]),
        (changed(0, torch.ones(6, 7).half()), ArgumentError, ["A", "shape[1] = 8", "got 7"]),
        (changed(0, torch.ones(48).half()), ArgumentError, ["A", "2 dimensions", "(48,)"]),
        (
            changed(1, torch.zeros(9, dtype=torch.int32)),
            ArgumentError,
            ["L", "shape[0]", "7", "got 9"],
        ),
        (
            changed(0, torch.ones(8, 6).half().T),
            ArgumentError,
            ["A", "strides[0] = 8", "contiguous"],
        ),
        (changed(2, "two"), TypeError, ["s", "float32", "str"]),
        (changed(3, 1.5), TypeError, ["k", "int32", "float"]),
        (changed(3, 2**31), ArgumentError, ["k", "int32", "2147483648"]),
        (changed(3, torch.tensor(1)), TypeError, ["k", "int32", "Tensor"]),
        (changed(0, [1.0]), TypeError, ["A", "tensor", "list"]),
        (changed(0, torch.ones(6, 8, device="meta").half()), ArgumentError, ["A", "meta", "CPU"]),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(call, kind, words):
    with pytest.raises(kind) as error:
        scaled()(*call)
    for word in ["scaled", *words]:
        assert word in str(error.value)


def test_argument_errors_are_value_errors():
    assert issubclass(ArgumentError, ValueError)


def test_strides_of_dimensions_of_one_do_not_matter():
    @jit_kernel(out_idx=[-1], threads=32)
    def one(A: T.Tensor((1, 8), "float32"), Y: T.Tensor((1, 8), "float32")):
        T.copy(A, Y)

    a = torch.randn(1, 16)[:, :8]
    assert torch.equal(one()(a), a)


def test_symbolic_strides_are_honoured():
    @tilelang.jit(out_idx=[-1])
    def strided():
        m, s = T.dynamic("m"), T.dynamic("s")

        @T.prim_func
        def main(A: T.StridedTensor((m, 8), (s, 1), "float16"), Y: T.Tensor((m, 8), "float16")):
            with T.Kernel(1, threads=32):
                T.copy(A[0:4, :], Y[0:4, :])

        return main

    a = torch.randn(4, 24).half()[:, 8:16]
    assert torch.equal(strided()(a), a)


def test_a_dispatch_mode_of_the_caller_may_poison_outputs_but_sees_no_inner_operation():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            out = func(*args, **(kwargs or {}))
            if "empty" in str(func):
                out.fill_(float("nan"))
            return out

    @jit_kernel(out_idx=[-1], threads=32)
    def half_written(A: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
        s = T.alloc_fragment((64, 64), "float32")
        T.copy(A, s)
        for i, j in T.Parallel(64, 64):
            s[i, j] = T.exp2(s[i, j])
        T.copy(s[0:32, :], Y[0:32, :])

    kernel = half_written()
    a = torch.randn(64, 64).half()
    with Mode():
        out = kernel(a)
    assert out[32:].isnan().all()
    assert not out[:32].isnan().any()
    assert not any("exp2" in name or "copy" in name for name in seen)


def test_tensors_that_require_grad_are_read_and_inputs_are_left_alone():
    a = torch.ones(6, 8).half().requires_grad_()
    before = a.detach().clone()
    assert scaled()(a, *arguments()[1:]).eq(5).all()
    assert torch.equal(a, before)


def test_several_outputs_come_as_a_list_in_the_order_of_out_idx():
    @jit_kernel(B="f32[4]", A="f32[4]", C="f32[4]", out_idx=[2, 0], threads=32)
    def two(B, A, C):
        for i in T.Parallel(4):
            B[i] = A[i] + 1.0
            C[i] = A[i] + 2.0

    a = torch.randn(4)
    c, b = two()(a)
    assert torch.equal(b, a + 1)
    assert torch.equal(c, a + 2)


def test_a_kernel_without_out_idx_writes_in_place_and_returns_none():
    @jit_kernel(threads=32)
    def in_place(A: T.Tensor((4,), "bfloat16")):
        for i in T.Parallel(4):
            A[i] = A[i] * 2.0

    a = torch.ones(4).bfloat16()
    assert in_place()(a) is None
    assert a.eq(2).all()


def test_the_number_of_torch_threads_is_restored():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        scaled()(*arguments())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_kernel_shows_its_source():
    kernel = scaled()
    assert kernel.source.startswith("def kernel(A, L, s, k, Y, m):")
    assert kernel.get_kernel_source() == kernel.source
    assert kernel.out_idx == [4]
    assert len(kernel.params) == 5


def test_the_source_can_be_written_to_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_DUMP", str(tmp_path))

    @jit_kernel(out_idx=[-1], threads=32)
    def dumped(Y: T.Tensor((37,), "float32")):
        for i in T.Parallel(37):
            Y[i] = 1.0

    dumped()
    (file,) = tmp_path.glob("dumped_*.py")
    assert f"# {__file__}:" in file.read_text()


def test_an_annotated_layout_of_a_global_buffer_is_physical():
    @jit_kernel(threads=32)
    def laid_out(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "float32")):
        T.annotate_layout({Y: T.Layout((8, 16), lambda i, j: [j, i])})
        T.copy(X, Y)

    x, y = torch.randn(8, 16), torch.empty(8, 16)
    laid_out()(x, y)
    assert torch.equal(y.view(16, 8), x.T)


def test_a_layout_that_needs_more_than_was_allocated_is_an_error():
    @jit_kernel(threads=32)
    def past(X: T.Tensor((10, 8), "float32"), Y: T.Tensor((10, 8), "float32")):
        T.annotate_layout({Y: T.Layout((10, 8), lambda i, j: [i // 8, j, i % 8])})
        T.copy(X, Y)

    with pytest.raises(RuntimeError, match=r"layout annotated on Y of shape \(10, 8\)"):
        past()(torch.randn(10, 8), torch.empty(10, 8))


def test_a_vector_atomic_whose_elements_a_layout_places_apart_is_an_error():
    @jit_kernel(X="f32[16, 16]", Y="f32[16, 16]", threads=32)
    def quads(X, Y, width):
        T.annotate_layout(
            {
                Y: T.Layout(
                    (16, 16), lambda i, j: [j // 8, i % 8 * 4 + j % 8 // 2, i // 8 * 2 + j % 2]
                )
            }
        )
        s = T.alloc_shared((16, 16), "float32")
        T.copy(X, s)
        for i, j in T.Parallel(16, 16 // width):
            if width == 2:
                T.atomic_addx2(Y[i, j * 2], s[i, j * 2])
            else:
                T.atomic_addx4(Y[i, j * 4], s[i, j * 4])

    x, y = torch.randn(16, 16), torch.zeros(16, 16)
    quads(2)(x, y)
    # Block of columns, row, pair of columns, half of the rows, column of the pair.
    placed = y.view(2, 8, 4, 2, 2).permute(3, 1, 0, 2, 4).reshape(16, 16)
    torch.testing.assert_close(placed, x)
    with pytest.raises(RuntimeError, match=r"adds to 4 elements side by side from Y\[0, 0\] on"):
        quads(4)(x, torch.zeros(16, 16))


@tilelang.jit
def optional_scale(scaled_rows: bool):
    n, groups, step = T.dynamic("n"), T.dynamic("groups"), T.dynamic("step")

    @T.prim_func
    def scale(
        X: T.Tensor((n,), "float32"),
        S: T.StridedTensor((n, groups), (step, 1), "float32"),
        Y: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 4), threads=32) as bx:
            for i in T.Parallel(4):
                if scaled_rows:
                    Y[bx * 4 + i] = X[bx * 4 + i] * S[bx * 4 + i, 0]
                else:
                    Y[bx * 4 + i] = X[bx * 4 + i] + groups + step

    return scale


def test_dimensions_that_only_an_absent_tensor_has_are_zero():
    x, y = torch.ones(6), torch.empty(6)
    optional_scale(False)(x, None, y)
    assert y.eq(1).all()


def test_strides_of_an_empty_tensor_are_bound():
    x, y = torch.ones(6), torch.empty(6)
    nothing = torch.empty(6, 0)
    optional_scale(False)(x, nothing, y)
    assert y.eq(1 + nothing.stride(0)).all()


@jit_kernel(X="f32[n]", Y="f32[n]", Last="f32[rows, 1]", name="copy", threads=32)
def noted_last(X, Y, Last, n, note):
    for i in T.serial(n):
        Y[i] = X[i] * 2
        if i == n - 1 and note:
            Last[0, 0] = X[i]
        if i > n:
            Last[1, 0] = X[i]


def test_a_tensor_may_be_absent_if_no_access_of_it_is_left():
    x, y = torch.arange(8.0), torch.empty(8)
    for sanitize in (False, True):
        with interpret(sanitize=sanitize) as run:
            noted_last(8, note=False)(x, y, None)
        assert torch.equal(y, 2 * x)
        assert not run.reports
    with interpret(), pytest.raises(TypeError, match="argument Last must be a tensor"):
        noted_last(8, note=True)(x, y, None)


def test_a_tensor_that_is_read_may_not_be_absent():
    with pytest.raises(TypeError, match="argument S must be a tensor, got NoneType"):
        optional_scale(True)(torch.ones(6), None, torch.empty(6))
