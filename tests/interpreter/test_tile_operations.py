"""Tile operations against numpy and torch."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


@tilelang.jit(out_idx=[-1])
def gemm_kernel(m, n, k, dtype, accum, trans_a, trans_b, clear):
    a_shape = (k, m) if trans_a else (m, k)
    b_shape = (n, k) if trans_b else (k, n)

    @T.prim_func
    def main(A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), accum)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(a_shape, dtype)
            b = T.alloc_shared(b_shape, dtype)
            c = T.alloc_fragment((m, n), accum)
            T.copy(A, a)
            T.copy(B, b)
            T.fill(c, 2)
            T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b, clear_accum=clear)
            T.copy(c, C)

    return main


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize(
    ("dtype", "accum"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float16", "float16"),
        ("int8", "int32"),
        ("float8_e4m3fn", "float32"),
    ],
)
def test_gemm(trans_a, trans_b, clear, dtype, accum):
    m, n, k = 64, 32, 48
    a = (torch.randn(m, k) * 4).to(getattr(torch, dtype))
    b = (torch.randn(k, n) * 4).to(getattr(torch, dtype))
    expected = a.double() @ b.double() + (0 if clear else 2)
    left = a.float().T.contiguous().to(a.dtype) if trans_a else a
    right = b.float().T.contiguous().to(b.dtype) if trans_b else b
    got = gemm_kernel(m, n, k, dtype, accum, trans_a, trans_b, clear)(left, right)
    tolerance = {"int32": 0, "float16": 1e-3}.get(accum, 1e-6)
    if dtype.startswith("float8"):  # of which the tensor cores keep 14 bits
        tolerance = 2e-4
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * 500)


@pytest.mark.parametrize(("arch", "kept"), [("sm_90a", 0), ("sm_100a", 32)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, True), (True, False)])
def test_sums_of_float8_products_keep_the_14_bits_that_hopper_keeps(arch, kept, trans_a, trans_b):
    """Ones beside a sum of 448 * 448, whose 14th bit is 16: lost on Hopper."""
    m, n, k = 64, 32, 64
    a, b = torch.ones(m, k), torch.ones(k, n)
    a[:, :32], b[:32] = 0, 0
    a[:, 0], b[0] = 448, 448
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    left = a.float().T.contiguous().to(a.dtype) if trans_a else a
    right = b.float().T.contiguous().to(b.dtype) if trans_b else b
    with interpret(arch=arch):
        kernel = gemm_kernel(m, n, k, "float8_e4m3fn", "float32", trans_a, trans_b, True)
        got = kernel(left, right)
    assert (got == 448 * 448 + kept).all()


def test_gemm_onto_an_accumulator_nobody_cleared_shows_nan():
    @tilelang.jit(out_idx=[-1])
    def uncleared():
        @T.prim_func
        def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((64, 64), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.copy(A, a)
                T.gemm(a, a, c)
                T.copy(c, C)

        return main

    assert uncleared()(torch.randn(64, 64).half()).isnan().all()


def test_shared_memory_does_not_keep_what_another_block_wrote():
    @tilelang.jit(out_idx=[-1])
    def stale():
        @T.prim_func
        def main(C: T.Tensor((4, 8), "float32")):
            with T.Kernel(4, threads=32) as bx:
                s = T.alloc_shared((8,), "float32")
                if bx == 0:
                    T.fill(s, 1)
                T.copy(s, C[bx, :])

        return main

    got = stale()()
    assert got[0].eq(1).all()
    assert got[1:].isnan().all()


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

    @tilelang.jit(out_idx=[-1])
    def make():
        @T.prim_func
        def main(X: T.Tensor((4, 16), "float16"), Y: T.Tensor((4,), "float16")):
            with T.Kernel(1, threads=32):
                x = T.alloc_fragment((4, 16), "float16")
                y = T.alloc_fragment((4,), "float16")
                T.copy(X, x)
                T.fill(y, 1)
                reduce(x, y, dim=1, clear=clear, nan_propagate=propagate)
                T.copy(y, Y)

        return main

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


def test_copies_between_all_memories_with_casts_and_slices():
    @tilelang.jit(out_idx=[-2, -1])
    def copies():
        @T.prim_func
        def main(
            X: T.Tensor((3, 64, 2, 32), "bfloat16"),
            Y: T.Tensor((64, 32), "float16"),
            Z: T.Tensor((2, 16, 32), "float32"),
        ):
            with T.Kernel(2, threads=128) as bx:
                a = T.alloc_shared((32, 32), "bfloat16")
                b = T.alloc_fragment((32, 32), "float32")
                c = T.alloc_shared((2, 32, 32), "float16")
                T.copy(X[2, bx * 32 : bx * 32 + 32, 1, :], a)
                T.copy(a, b)
                T.copy(b, c[1, :, :])
                T.copy(c[1, :, :], Y[bx * 32 : bx * 32 + 32, :])
                T.copy(b[8:24, :], Z[bx, :, :])

        return main

    x = torch.randn(3, 64, 2, 32).bfloat16()
    y, z = copies()(x)
    assert torch.equal(y, x[2, :, 1].half())
    assert torch.equal(z[1], x[2, 40:56, 1].float())


def test_a_copy_of_global_to_global_and_of_single_elements():
    @tilelang.jit(out_idx=[-1])
    def direct():
        @T.prim_func
        def main(X: T.Tensor((8, 8), "float16"), Y: T.Tensor((8, 8), "float16")):
            with T.Kernel(8, threads=32) as bx:
                T.copy(X[bx, 0:8], Y[7 - bx, 0:8])
                Y[bx, bx] = X[0, bx]

        return main

    x = torch.randn(8, 8).half()
    got = direct()(x)
    expected = x.flip(0).clone()
    for b in range(8):
        expected[b, b] = x[0, b] if 7 - b <= b else expected[b, b]
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert torch.equal(got[off_diagonal], x.flip(0)[off_diagonal])


def test_transposed_access_in_a_parallel_loop():
    @tilelang.jit(out_idx=[-1])
    def transpose():
        @T.prim_func
        def main(X: T.Tensor((40, 24), "float32"), Y: T.Tensor((24, 40), "float32")):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((40, 24), "float32")
                T.copy(X, s)
                for i, j in T.Parallel(24, 40):
                    Y[i, j] = s[j, i]

        return main

    x = torch.randn(40, 24)
    assert torch.equal(transpose()(x), x.T)


def test_a_parallel_loop_that_reads_what_it_writes_elsewhere_sees_the_old_values():
    @tilelang.jit(out_idx=[-1])
    def symmetric():
        @T.prim_func
        def main(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
            with T.Kernel(1, threads=128):
                s = T.alloc_fragment((16, 16), "float32")
                T.copy(X, s)
                for i, j in T.Parallel(16, 16):
                    s[i, j] = s[i, j] * 2.0 - s[j, i]
                T.copy(s, Y)

        return main

    x = torch.randn(16, 16)
    torch.testing.assert_close(symmetric()(x), x * 2 - x.T)


def test_gather_by_loaded_indices():
    @tilelang.jit(out_idx=[-1])
    def gather():
        @T.prim_func
        def main(
            X: T.Tensor((50, 16), "float16"),
            Index: T.Tensor((32,), "int32"),
            Y: T.Tensor((32, 16), "float16"),
        ):
            with T.Kernel(1, threads=128):
                for i, j in T.Parallel(32, 16):
                    Y[i, j] = X[Index[i], j]

        return main

    x = torch.randn(50, 16).half()
    index = torch.randint(0, 50, (32,), dtype=torch.int32)
    assert torch.equal(gather()(x, index), x[index.long()])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_atomic_add_of_single_elements_with_collisions(dtype):
    @tilelang.jit
    def histogram(dtype):
        @T.prim_func
        def main(Index: T.Tensor((64,), "int32"), H: T.Tensor((8,), dtype)):
            with T.Kernel(2, threads=32) as bx:
                for i in T.Parallel(32):
                    T.atomic_add(H[Index[bx * 32 + i]], 1)

        return main

    index = torch.randint(0, 8, (64,), dtype=torch.int32)
    total = torch.zeros(8, dtype=getattr(torch, dtype))
    histogram(dtype)(index, total)
    assert torch.equal(total.long(), torch.bincount(index.long(), minlength=8))


def test_atomic_add_sums_over_lanes_that_do_not_show_in_the_index():
    @tilelang.jit
    def rows():
        @T.prim_func
        def main(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=128):
                for i, j in T.Parallel(16, 24):
                    T.atomic_add(Y[i], X[i, j])

        return main

    x, y = torch.randn(16, 24), torch.ones(16)
    rows()(x, y)
    torch.testing.assert_close(y, x.sum(1) + 1)


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_tile_atomics_skip_what_is_outside(kind):
    @tilelang.jit
    def tile(kind):
        op = {"add": T.atomic_add, "max": T.atomic_max, "min": T.atomic_min}[kind]

        @T.prim_func
        def main(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((50, 32), "float32")):
            with T.Kernel(2, threads=128) as bx:
                s = T.alloc_shared((32, 32), "float32")
                T.copy(X[bx * 32, 0], s)
                op(Y[bx * 32 : bx * 32 + 32, :], s)

        return main

    x, y = torch.randn(64, 32), torch.randn(50, 32)
    expected = {"add": y + x[:50], "max": y.maximum(x[:50]), "min": y.minimum(x[:50])}[kind]
    tile(kind)(x, y)
    torch.testing.assert_close(y, expected)


def test_vector_atomics_and_previous_values():
    @tilelang.jit(out_idx=[-1])
    def pairs():
        @T.prim_func
        def main(
            X: T.Tensor((8, 8), "float32"),
            Y: T.Tensor((8, 8), "float32"),
            N: T.Tensor((1,), "int32"),
            P: T.Tensor((16,), "int32"),
        ):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((8, 8), "float32")
                T.copy(X, s)
                for i, j in T.Parallel(8, 4):
                    T.atomic_addx2(Y[i, j * 2], s[i, j * 2])
                for i in T.Parallel(16):
                    P[i] = T.atomic_add(N[0], 2, return_prev=True)

        return main

    x, y, n = torch.randn(8, 8), torch.randn(8, 8), torch.tensor([5], dtype=torch.int32)
    expected = x + y
    previous = pairs()(x, y, n)
    torch.testing.assert_close(y, expected)
    assert sorted(previous.tolist()) == list(range(5, 37, 2))
    assert n.item() == 37


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_reducers_combine_the_contributions_of_all_lanes(op):
    @tilelang.jit(out_idx=[-1])
    def reducer(op):
        @T.prim_func
        def main(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=128):
                x = T.alloc_fragment((16, 24), "float32")
                y = T.alloc_fragment((16,), "float32")
                acc = T.alloc_reducer((16,), "float32", op=op)
                T.copy(X, x)
                T.reducer_init(acc)
                for i, j in T.Parallel(16, 24):
                    T.reducer_update(acc[i], x[i, j])
                T.finalize_reducer(acc, y)
                T.copy(y, Y)

        return main

    x = torch.randn(16, 24)
    expected = {"sum": x.sum(1), "max": x.amax(1), "min": x.amin(1)}[op]
    torch.testing.assert_close(reducer(op)(x), expected)


@pytest.mark.filterwarnings("ignore:alloc_reducer")
def test_reducers_written_by_assignment():
    @tilelang.jit(out_idx=[-1])
    def reducer():
        @T.prim_func
        def main(X: T.Tensor((16, 24), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=128):
                x = T.alloc_fragment((16, 24), "float32")
                acc = T.alloc_reducer((16,), "float32", op="sum", replication="all")
                T.copy(X, x)
                T.clear(acc)
                for i, j in T.Parallel(16, 24):
                    acc[i] += x[i, j]
                T.finalize_reducer(acc)
                T.copy(acc, Y)

        return main

    x = torch.randn(16, 24)
    torch.testing.assert_close(reducer()(x), x.sum(1))


def test_reshaped_and_reinterpreted_views_share_memory():
    @tilelang.jit(out_idx=[-1])
    def views():
        @T.prim_func
        def main(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "int32")):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((8, 16), "float32")
                flat = T.reshape(s, [128])
                T.copy(X, s)
                for i in T.Parallel(128):
                    flat[i] = flat[i] + i
                as_bits = T.view(s, [8, 16], "int32")
                T.copy(as_bits, Y)

        return main

    x = torch.randn(8, 16)
    expected = x + torch.arange(128).reshape(8, 16)
    assert torch.equal(views()(x).view(torch.float32), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_tiles_of_one_element_are_filled_copied_and_reduced_in_place(dtype):
    @tilelang.jit(out_idx=[-1])
    def row_sum():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n, 8), dtype), Y: T.Tensor((n,), dtype)):
            with T.Kernel(n, threads=32) as row:
                x = T.alloc_fragment((1, 8), dtype)
                total = T.alloc_fragment((1,), dtype)
                shared = T.alloc_shared((1,), dtype)
                T.fill(total, 1)
                T.copy(X[row, 0], x)
                T.reduce_sum(x, total, dim=1, clear=False)
                T.copy(total, shared)
                T.copy(shared, Y[row])

        return main

    x = torch.arange(24).reshape(3, 8).to(getattr(torch, dtype))
    assert torch.equal(row_sum()(x), x.sum(1).to(x.dtype) + 1)


def test_tf32_cuts_float32_factors_and_nothing_else():
    from tlmatrix.interpreter import interpret

    @tilelang.jit(out_idx=[-1])
    def product(dtype):
        @T.prim_func
        def main(
            A: T.Tensor((16, 16), dtype),
            B: T.Tensor((16, 16), dtype),
            C: T.Tensor((16, 16), "float32"),
        ):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((16, 16), dtype)
                b = T.alloc_shared((16, 16), dtype)
                c = T.alloc_fragment((16, 16), "float32")
                T.copy(A, a)
                T.copy(B, b)
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, C)

        return main

    a = torch.full((16, 16), 1 + 2**-10 + 2**-12)
    eye = torch.eye(16)
    assert torch.equal(product("float32")(a, eye), a)
    with interpret(tf32=True):
        assert product("float32")(a, eye).eq(1 + 2**-10).all()
        with interpret():
            assert product("float32")(a, eye).eq(1 + 2**-10).all()
        with interpret(tf32=False):
            assert torch.equal(product("float32")(a, eye), a)
        half = torch.randn(16, 16).half()
        assert torch.equal(product("float16")(half, eye.half()), half.float())
    assert torch.equal(product("float32")(a, eye), a)


def test_a_layout_over_a_symbolic_dimension():
    @tilelang.jit
    def rotate():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n, 8), "float32")):
            with T.Kernel(n, threads=32) as row:
                T.annotate_layout({X: T.Layout(X.shape, lambda i, j: [i, (j + i) % 8])})
                for j in T.Parallel(8):
                    X[row, j] = j

        return main

    for n in (3, 5):
        x = torch.zeros(n, 8)
        rotate()(x)
        want = torch.stack([torch.arange(8.0).roll(i) for i in range(n)])
        assert torch.equal(x, want)


def test_print_shows_values(capsys):
    @tilelang.jit
    def shows():
        @T.prim_func
        def main(X: T.Tensor((4,), "float16")):
            with T.Kernel(2, threads=32) as bx:
                f = T.alloc_fragment((4,), "float16")
                T.copy(X, f)
                T.print(bx)
                if bx == 1:
                    T.print(f[2], msg="{third}")
                    T.print(f)

        return main

    shows()(torch.tensor([1.0, 2.0, 3.1, 4.0]).half())
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["expr<bx>: 0", "expr<bx>: 1"]
    assert out[2].startswith("{third}: 3.09")
    assert [line.split(": ")[0] for line in out[3:]] == [
        f"buffer<f, float16> f[{i}]" for i in range(4)
    ]
    assert out[3].endswith(": 1.0")


@tilelang.jit(out_idx=[-1])
def im2col_kernel(n, h, w, c, kernel, stride, dilation, pad, pixels, channels, dtype):
    h_out = (h + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    w_out = (w + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    rows = T.ceildiv(n * h_out * w_out, pixels)
    columns = kernel * kernel * c // channels

    @T.prim_func
    def main(
        X: T.Tensor((n, h, w, c), dtype), Out: T.Tensor((rows * pixels, columns * channels), dtype)
    ):
        with T.Kernel(rows, columns, threads=128) as (bx, by):
            tile = T.alloc_shared((pixels, channels), dtype)
            T.im2col(X, tile, bx, by, kernel, stride, dilation, pad)
            T.copy(tile, Out[bx * pixels, by * channels])

    return main


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 2), (1, 1, 1)])
def test_im2col_lays_out_what_each_tap_of_a_filter_sees(kernel, stride, dilation, dtype):
    n, h, w, c, pixels, channels = 2, 7, 5, 8, 16, 4
    pad = (kernel - 1) * dilation // 2
    x = torch.randn(n, h, w, c).to(getattr(torch, dtype))
    got = im2col_kernel(n, h, w, c, kernel, stride, dilation, pad, pixels, channels, dtype)(x)
    unfolded = torch.nn.functional.unfold(
        x.float().permute(0, 3, 1, 2), kernel, dilation=dilation, padding=pad, stride=stride
    )
    taps = unfolded.reshape(n, c, kernel * kernel, -1).permute(0, 3, 2, 1)
    expected = taps.reshape(-1, kernel * kernel * c).to(x.dtype)
    assert torch.equal(got[: len(expected)], expected)
    assert not got[len(expected) :].any()


def test_im2col_that_shrinks_the_image_is_refused():
    with pytest.raises(Unsupported, match=r"T\.im2col with a padding that changes the size"):
        im2col_kernel(1, 8, 8, 8, 3, 1, 1, 0, 16, 8, "float16")


def test_bytes_in_shared_memory_are_seen_as_float8():
    @tilelang.jit(out_idx=[-1])
    def kernel(dtype):
        @T.prim_func
        def main(Raw: T.Tensor((16, 32), "uint8"), Out: T.Tensor((16, 32), "float32")):
            with T.Kernel(1, threads=64):
                raw = T.alloc_shared((16, 32), "uint8")
                values = T.view(raw, (16, 32), dtype)
                T.copy(Raw, raw)
                for i, j in T.Parallel(16, 32):
                    Out[i, j] = values[i, j]

        return main

    raw = torch.arange(512).remainder(256).to(torch.uint8).reshape(16, 32)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        expected = raw.view(getattr(torch, dtype)).float()
        assert torch.equal(kernel(dtype)(raw).nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_in_shared_memory_are_written_in_pairs_as_one_word(dtype):
    @tilelang.jit(out_idx=[-1])
    def kernel(dtype):
        @T.prim_func
        def main(
            A: T.Tensor((16, 64), dtype),
            B: T.Tensor((64, 8), dtype),
            Out: T.Tensor((16, 8), "float32"),
        ):
            with T.Kernel(1, threads=64):
                a = T.alloc_shared((16, 64), dtype)
                b = T.alloc_shared((64, 8), dtype)
                words = T.view(a, (16, 32), "uint32")
                given = T.view(A, (16, 32), "uint32")
                c = T.alloc_fragment((16, 8), "float32")
                for i, j in T.Parallel(16, 32):
                    words[i, j] = given[i, j]
                T.copy(B, b)
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, Out)

        return main

    a, b = (
        torch.randn(16, 64).to(getattr(torch, dtype)),
        torch.randn(64, 8).to(getattr(torch, dtype)),
    )
    with interpret(sanitize=True) as run:
        got = kernel(dtype)(a, b)
    assert not run.reports
    torch.testing.assert_close(got, a.float() @ b.float())


def test_memory_that_is_also_seen_as_bits_is_unwritten_at_first():
    @tilelang.jit(out_idx=[-1])
    def kernel(dtype):
        @T.prim_func
        def main(Out: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((8,), dtype)
                bits = T.view(a, (8,), "uint8" if "8" in dtype else "uint16")
                for i in T.Parallel(4):
                    bits[i] = 0
                for i in T.Parallel(8):
                    Out[i] = a[i]

        return main

    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        out = kernel(dtype)()
        assert not out[:4].any()
        assert out[4:].isnan().all()
