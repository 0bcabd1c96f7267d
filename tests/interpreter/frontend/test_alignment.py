"""The sanitizer `alignment`: arguments that TileLang's vector accesses and TMA find misaligned."""

from functools import partial

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.frontend.alignment import in_vectors

ROWS = 32


@tilelang.jit
def scaled(whole):
    """Rows times a scale of each column; with `whole` the columns are a multiple of 8."""
    m, n = T.dynamic("m"), T.dynamic("n") * (8 if whole else 1)

    @T.prim_func
    def scale_columns(
        X: T.Tensor((m, n), "float32"),
        scale: T.Tensor((n,), "float32"),
        Y: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, ROWS), threads=128) as (bn, bm):
            for i, j in T.Parallel(ROWS, 64):
                Y[bm * ROWS + i, bn * 64 + j] = X[bm * ROWS + i, bn * 64 + j] * scale[bn * 64 + j]

    return scale_columns


@tilelang.jit
def staged(disable_tma, whole=False):
    """Tiles of rows of a symbolic length go through shared memory."""
    m, k = T.dynamic("m"), T.dynamic("k") * (8 if whole else 1)

    @T.prim_func
    def stage(A: T.Tensor((m, k), "float16"), C: T.Tensor((m, 64), "float32")):
        with T.Kernel(T.ceildiv(m, 32), threads=128) as block:
            a = T.alloc_shared((32, 64), "float16")
            sums = T.alloc_fragment((32, 64), "float32")
            T.clear(sums)
            for step in T.Pipelined(T.ceildiv(k, 64), num_stages=2):
                T.copy(A[block * 32, step * 64], a, disable_tma=disable_tma)
                for i, j in T.Parallel(32, 64):
                    sums[i, j] += a[i, j]
            T.copy(sums, C[block * 32, 0])

    return stage


@jit_kernel(X="f32[32 * width]", Y="f32[n]", name="add", threads=32)
def added(X, Y, width):
    """Atomics on `width` elements at once."""
    for i in T.Parallel(32):
        if width == 4:
            T.atomic_addx4(Y[4 * i], X[4 * i])
        else:
            T.atomic_add(Y[i], X[i])


@jit_kernel(X="f32[1024]", Y="f32[1024]")
def doubled(X, Y):
    """The element has a name of its own in the loop."""
    with T.Kernel(8, threads=32) as block:
        for i in T.Parallel(128):
            element = block * 128 + i
            Y[element] = 2 * X[element]


@jit_kernel(X="f32[1024]", Y="f32[1024]")
def added_vectors(X, Y):
    with T.Kernel(8, threads=32) as block:
        for k in T.serial(32):
            for i in T.vectorized(4):
                Y[block * 128 + k * 4 + i] = X[block * 128 + k * 4 + i] + 1


n = T.dynamic("n")


@jit_kernel
def one_row(table: T.Tensor((n,), "int32"), Y: T.Tensor((n, 32), "int32")):
    """A single element of a table by each block: a scalar load."""
    with T.Kernel(n, threads=32) as block:
        for i in T.Parallel(32):
            Y[block, i] = table[block] + i


@tilelang.jit
def copied(condition):
    """Rows of any length; under some conditions their elements are at multiples of a vector."""
    m, k = T.dynamic("m, k")

    @T.prim_func
    def copy_rows(A: T.Tensor((m, k), "float16"), C: T.Tensor((m, k), "float16")):
        with T.Kernel(m, threads=64) as block:
            if condition(m, k, block):
                for i in T.Parallel(64):
                    C[block, i] = A[block, i]

    return copy_rows


def offset(*shape, dtype=torch.float32, elements=1):
    size = torch.Size(shape).numel()
    return torch.zeros(size + elements, dtype=dtype)[elements:].view(*shape)


def reports_of(factory, *args, arch="sm_90a"):
    with interpret(sanitize="alignment", arch=arch) as run:
        factory()(*args)
    assert {r.sanitizer for r in run.reports} <= {"alignment"}
    return run.reports


def test_a_vector_load_of_a_tensor_that_starts_between_vectors():
    x, y = torch.zeros(40, 64), torch.zeros(40, 64)
    (report,) = reports_of(partial(scaled, True), x, offset(64), y)
    assert report.buffer == "scale"
    assert "begins 4 bytes after a multiple of 16" in report.message
    assert "a vector load of 4 elements" in report.message
    assert report.file == __file__


@pytest.mark.parametrize(("whole", "elements"), [(True, 0), (True, 4), (False, 1)])
def test_aligned_tensors_and_scalar_loads_are_no_finding(whole, elements):
    """Rows of any length are loaded element by element, and so may begin anywhere."""
    x, y = torch.zeros(40, 64), torch.zeros(40, 64)
    assert not reports_of(partial(scaled, whole), x, offset(64, elements=elements), y)


def test_a_vector_store_and_a_load_of_one_tensor_are_one_finding_each():
    x = offset(40, 64)
    reports = reports_of(partial(scaled, True), x, torch.zeros(64), offset(40, 64))
    assert sorted(r.buffer for r in reports) == ["X", "Y"]
    assert any("a vector store" in r.message for r in reports)


def test_rows_that_tma_cannot_copy():
    """TileLang does not check the stride of rows of a symbolic length."""
    a, c = torch.zeros(70, 129).half(), torch.zeros(70, 64)
    (report,) = reports_of(partial(staged, False), a, c)
    assert (report.buffer, report.message) == (
        "A",
        "A has a stride of 258 bytes, which is no multiple of the 16 that a TMA descriptor needs",
    )
    assert not reports_of(partial(staged, False), torch.zeros(70, 136).half(), c)
    assert not reports_of(partial(staged, True), a, c)
    assert not reports_of(partial(staged, False), a, c, arch="sm_80")


def test_cp_async_of_a_tensor_that_starts_between_vectors():
    c = torch.zeros(70, 64)
    a = offset(70, 136, dtype=torch.float16)
    (report,) = reports_of(partial(staged, False, whole=True), a, c, arch="sm_80")
    assert "cp.async of 16 bytes needs" in report.message


def test_an_atomic_on_four_elements():
    x = torch.zeros(128)
    (report,) = reports_of(partial(added, 4), x, offset(128))
    assert "Y begins 4 bytes after a multiple of 16" in report.message
    assert not reports_of(partial(added, 4), x, torch.zeros(128))
    assert not reports_of(partial(added, 1), torch.zeros(32), offset(32))


def test_an_index_that_a_parallel_loop_binds_to_a_name():
    reports = reports_of(doubled, offset(1024), torch.zeros(1024))
    assert [report.buffer for report in reports] == ["X"]


def test_a_vectorized_loop():
    reports = reports_of(added_vectors, offset(1024), torch.zeros(1024))
    assert [report.buffer for report in reports] == ["X"]


def test_a_scalar_load_is_not_lowered(monkeypatch):
    """Tables that are read one element at a time cost nothing, wherever they begin."""
    from tlmatrix.interpreter.frontend import alignment

    monkeypatch.setattr(alignment, "lowered", lambda *_: pytest.fail("lowered"))
    assert not reports_of(one_row, offset(5, dtype=torch.int32), torch.zeros(5, 32).int())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_that_may_begin_anywhere_are_not_lowered(monkeypatch, arch):
    """Of rows of any length no vector is provably at a multiple of its width."""
    from tlmatrix.interpreter.frontend import alignment

    monkeypatch.setattr(alignment, "lowered", lambda *_: pytest.fail("lowered"))
    c = torch.zeros(70, 64)
    moved = offset(70, 129, dtype=torch.float16)
    assert not reports_of(partial(staged, True), moved, c, arch=arch)


def test_the_stride_of_a_single_row_is_that_of_its_shape(monkeypatch):
    """PyTorch calls the tensor contiguous, and TileLang computes strides from extents."""
    from tlmatrix.interpreter.frontend import alignment

    monkeypatch.setattr(alignment, "lowered", lambda *_: pytest.fail("lowered"))
    a = torch.zeros(136).half().as_strided((1, 136), (129, 1))
    assert a.is_contiguous()
    assert not reports_of(partial(staged, False), a, torch.zeros(1, 64))


@pytest.mark.parametrize(
    ("condition", "vectors"),
    [
        (lambda m, _k, block: block < m - 1, set()),
        (lambda _m, k, _block: k % 8 == 0, {0, 1}),
        (lambda _m, _k, block: block == 0, {0, 1}),
        (lambda _m, _k, block: block < 1, {0, 1}),
    ],
)
def test_conditions_under_which_rows_begin_at_vectors(condition, vectors):
    assert in_vectors(copied.get_tir(condition)) == vectors
