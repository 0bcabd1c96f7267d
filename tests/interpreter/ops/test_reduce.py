"""Reductions, scans and reducers of tiles against torch."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


@tilelang.jit(out_idx=[-1])
def reduce_kernel(kind, dim, clear, dtype, m=16, n=40):
    out = n if dim == 0 else m
    reducers = {
        "sum": lambda a, b: T.reduce_sum(a, b, dim=dim, clear=clear),
        "max": lambda a, b: T.reduce_max(a, b, dim=dim, clear=clear),
        "min": lambda a, b: T.reduce_min(a, b, dim=dim, clear=clear),
        "absmax": lambda a, b: T.reduce_absmax(a, b, dim=dim, clear=clear),
        "abssum": lambda a, b: T.reduce_abssum(a, b, dim=dim),
        "bitand": lambda a, b: T.reduce_bitand(a, b, dim=dim, clear=clear),
        "bitor": lambda a, b: T.reduce_bitor(a, b, dim=dim, clear=clear),
        "bitxor": lambda a, b: T.reduce_bitxor(a, b, dim=dim, clear=clear),
    }
    call = reducers[kind]

    @T.prim_func
    def main(X: T.Tensor((m, n), dtype), Y: T.Tensor((out,), dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((m, n), dtype)
            y = T.alloc_fragment((out,), dtype)
            T.copy(X, x)
            T.fill(y, 3)
            call(x, y)
            T.copy(y, Y)

    return main


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "absmax"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_reductions(kind, dim, clear, dtype):
    x = (torch.randn(16, 40) * 3).to(getattr(torch, dtype))
    wide = x.double()
    expected = {
        "sum": wide.sum(dim) + (0 if clear else 3),
        "max": wide.amax(dim) if clear else wide.amax(dim).clamp(min=3),
        "min": wide.amin(dim) if clear else wide.amin(dim).clamp(max=3),
        "absmax": wide.abs().amax(dim) if clear else wide.abs().amax(dim).clamp(min=3),
    }[kind]
    got = reduce_kernel(kind, dim, clear, dtype)(x)
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("propagate", [False, True])
@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("kind", ["max", "min", "absmax"])
def test_reductions_propagate_nan_where_asked(kind, clear, propagate):
    reduce = getattr(T, f"reduce_{kind}")

    @jit_kernel(out_idx=[-1], threads=32)
    def make(X: T.Tensor((4, 16), "float16"), Y: T.Tensor((4,), "float16")):
        x = T.alloc_fragment((4, 16), "float16")
        y = T.alloc_fragment((4,), "float16")
        T.copy(X, x)
        T.fill(y, 1)
        reduce(x, y, dim=1, clear=clear, nan_propagate=propagate)
        T.copy(y, Y)

    x = torch.ones(4, 16, dtype=torch.float16)
    x[2, 5] = float("nan")
    expected = torch.ones(4, dtype=torch.float16)
    expected[2] = float("nan") if propagate else 1
    assert torch.equal(make()(x).nan_to_num(-1), expected.nan_to_num(-1))


@pytest.mark.parametrize("kind", ["bitand", "bitor", "bitxor"])
def test_bit_reductions(kind):
    x = torch.randint(0, 1 << 20, (16, 40), dtype=torch.int32)
    expected = x[:, 0].clone()
    for j in range(1, 40):
        column = x[:, j]
        expected = {
            "bitand": expected & column,
            "bitor": expected | column,
            "bitxor": expected ^ column,
        }[kind]
    assert torch.equal(reduce_kernel(kind, 1, True, "int32")(x), expected)


def test_abssum():
    x = torch.randn(16, 40)
    torch.testing.assert_close(reduce_kernel("abssum", 1, True, "float32")(x), x.abs().sum(1))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("source", [slice(0, 40), slice(8, 24)])
def test_a_sum_of_a_part_with_the_dimension_kept(source, kept):
    @tilelang.jit(out_idx=[-1])
    def make():
        shape = (16, 1) if kept else (16,)

        @T.prim_func
        def main(X: T.Tensor((16, 40), "float32"), Y: T.Tensor(shape, "float32")):
            with T.Kernel(1, threads=32):
                x = T.alloc_shared((16, 40), "float32")
                y = T.alloc_fragment(shape, "float32")
                T.copy(X, x)
                T.reduce_sum(x[:, source.start : source.stop], y, dim=1)
                T.copy(y, Y)

        return main

    x = torch.randn(16, 40)
    assert torch.equal(make()(x).flatten(), x[:, source].sum(1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_a_vector_is_reduced_to_one_element(kind, clear):
    @jit_kernel
    def make(X: T.Tensor((40,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((40,), "float32")
            y = T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            T.fill(y, 0.5)
            getattr(T, f"reduce_{kind}")(x, y, dim=0, clear=clear)
            T.copy(y, Y)

    x, y = torch.randn(40), torch.empty(1)
    x[7] = float("nan") if kind != "sum" else 1
    make()(x, y)
    numbers = x[~x.isnan()] if clear else torch.cat([x[~x.isnan()], torch.tensor([0.5])])
    expected = {"max": numbers.max, "min": numbers.min, "sum": numbers.sum}[kind]()
    assert torch.allclose(y[0], expected)


def test_a_maximum_over_a_row_with_a_nan_is_that_of_its_numbers():
    x = torch.randn(16, 40)
    x[3, 5] = float("nan")
    got = reduce_kernel("max", 1, True, "float32")(x)
    assert got[3] == x[3][~x[3].isnan()].max()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_cumsum(dim, reverse, scope):
    @tilelang.jit(out_idx=[-1])
    def scan(dim, reverse, scope):
        alloc = T.alloc_shared if scope == "shared" else T.alloc_fragment

        @T.prim_func
        def main(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16, 24), "float32")):
            with T.Kernel(1, threads=128):
                x = alloc((16, 24), "float32")
                T.copy(X, x)
                T.cumsum(x, dim=dim, reverse=reverse)
                T.copy(x, Y)

        return main

    x = torch.randn(16, 24)
    expected = x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)
    torch.testing.assert_close(scan(dim, reverse, scope)(x), expected)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_reducers_combine_the_contributions_of_all_lanes(op):
    @jit_kernel(X="f32[16, 24]", Y="f32[16]", out_idx=[-1], threads=128)
    def reducer(X, Y, op):
        x = T.alloc_fragment((16, 24), "float32")
        y = T.alloc_fragment((16,), "float32")
        acc = T.alloc_reducer((16,), "float32", op=op)
        T.copy(X, x)
        T.reducer_init(acc)
        for i, j in T.Parallel(16, 24):
            T.reducer_update(acc[i], x[i, j])
        T.finalize_reducer(acc, y)
        T.copy(y, Y)

    x = torch.randn(16, 24)
    expected = {"sum": x.sum(1), "max": x.amax(1), "min": x.amin(1)}[op]
    torch.testing.assert_close(reducer(op)(x), expected)


@pytest.mark.filterwarnings("ignore:alloc_reducer")
def test_reducers_written_by_assignment():
    @jit_kernel(out_idx=[-1], threads=128)
    def reducer(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16,), "float32")):
        x = T.alloc_fragment((16, 24), "float32")
        acc = T.alloc_reducer((16,), "float32", op="sum", replication="all")
        T.copy(X, x)
        T.clear(acc)
        for i, j in T.Parallel(16, 24):
            acc[i] += x[i, j]
        T.finalize_reducer(acc)
        T.copy(acc, Y)

    x = torch.randn(16, 24)
    torch.testing.assert_close(reducer()(x), x.sum(1))
