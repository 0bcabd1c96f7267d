"""CUDA's own functions by their C names, numbers as conditions, and integers as C promotes them."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")


def called(name, out, dtype, *more):
    """A kernel that calls a function for each element."""

    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1])
    def kernel(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), out)):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                Y[bx * 32 + i] = T.call_extern(out, name, X[bx * 32 + i], *more)

    return kernel()


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("__popc", [0, 1, 255, -1], [0, 1, 8, 32]),
        ("__clz", [0, 1, 255, -1], [32, 31, 24, 0]),
        ("__ffs", [0, 1, 48, -(2**31)], [0, 1, 5, 32]),
    ],
)
def test_bits_are_counted(name, values, expected):
    assert (
        called(name, "int32", "int32")(torch.tensor(values, dtype=torch.int32)).tolist() == expected
    )


def test_bits_of_a_scalar_are_counted_in_its_width():
    @jit_kernel(out_idx=[-1], threads=32)
    def kernel(x: T.int32, Y: T.Tensor((4,), "int32")):
        Y[0] = T.popcount(x)
        Y[1] = T.call_extern("int32", "__clz", x)
        Y[2] = T.call_extern("int32", "__ffs", x)
        Y[3] = T.call_extern("int32", "max", x, -5)

    assert kernel()(-16).tolist() == [28, 0, 5, -5]


def test_the_bit_that_is_set_after_others():
    @jit_kernel(
        mask="u32[64]", base="u32[64]", offset="i32[64]", Y="u32[65]", out_idx=[-1], threads=64
    )
    def kernel(mask, base, offset, Y):
        for i in T.Parallel(64):
            Y[i] = T.__fns(mask[i], base[i], offset[i])
        T.call_extern("void", "__nanosleep", 100)
        Y[64] = T.call_extern("uint32", "__fns", T.uint32(0b10110), T.uint32(4), -2)

    def right(mask, base, offset):
        places = range(base, 32) if offset > 0 else range(min(base, 32), -1, -1)
        places = [base] if offset == 0 else list(places) if base < 32 else []
        found = [place for place in places if mask >> place & 1]
        return found[max(abs(offset), 1) - 1] if len(found) >= max(abs(offset), 1) else 2**32 - 1

    mask = torch.randint(0, 2**32, (64,))
    base, offset = torch.arange(64) // 2 + 1, torch.arange(64) % 9 - 4
    got = kernel()(mask.to(torch.uint32), base.to(torch.uint32), offset.int()).tolist()
    expected = map(right, mask.tolist(), base.tolist(), offset.tolist())
    assert got == [*expected, 2]


def test_a_float_becomes_a_half_towards_zero():
    x = torch.tensor([1.0, 1.0 + 2**-11 + 2**-12, -1.0 - 2**-11 - 2**-12, 65530.0, 1e9, 2.0**-25])
    got = called("__float2half_rz", "float16", "float32")(x)
    assert got.tolist() == [1.0, 1.0, -1.0, 65504.0, 65504.0, 0.0]
    assert x.half().tolist() != got.tolist()


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("expf", torch.exp),
        ("__logf", torch.log),
        ("sqrtf", torch.sqrt),
        ("__frcp_rn", torch.reciprocal),
        ("rintf", torch.round),
    ],
)
def test_functions_of_floats(name, reference):
    x = torch.rand(50) * 9 + 0.1
    torch.testing.assert_close(called(name, "float32", "float32")(x), reference(x))


def test_rounding_to_an_integer_follows_its_name():
    x = torch.tensor([0.5, 1.5, -0.5, -1.2, 2.7])
    assert called("__float2int_rn", "int32", "float32")(x).tolist() == [0, 2, 0, -1, 3]
    assert called("__float2int_rd", "int32", "float32")(x).tolist() == [0, 1, -1, -2, 2]
    assert called("__float2int_rz", "int32", "float32")(x).tolist() == [0, 1, 0, -1, 2]


def test_round_keeps_ties_even_unless_it_says_away_from_zero():
    @jit_kernel(out_idx=[-1], threads=32)
    def kernel(X: T.Tensor((6,), "float32"), Y: T.Tensor((3, 6), "float32")):
        for i in T.Parallel(6):
            Y[0, i] = T.round(X[i])
            Y[1, i] = T.round(X[i], "ties-away-from-zero")
            Y[2, i] = T.call_extern("float32", "roundf", X[i])

    even, away, extern = kernel()(torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 2.6])).tolist()
    assert even == [0, 2, 2, 0, -2, 3]
    assert away == extern == [1, 2, 3, -1, -3, 3]


def test_events_of_the_profiler_have_no_effect():
    iket = pytest.importorskip("tilelang.tools.cuda.iket")

    @jit_kernel(out_idx=[-1])
    def kernel(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32) as bx, iket.range("all"):
            for i in T.Parallel(32):
                iket.mark("element", payload=iket.payload(T.uint32(i), "uint32"))
                Y[bx * 32 + i] = X[bx * 32 + i] * 2

    x = torch.randn(64)
    assert torch.equal(kernel()(x), x * 2)


def test_lanes_of_a_warp_are_matched_shuffled_and_asked():
    @jit_kernel(threads=64)
    def kernel(X: T.Tensor((64,), "int32"), Y: T.Tensor((4, 64), "int32")):
        tx = T.get_thread_binding()
        same = T.call_extern("uint32", "__match_any_sync", 0xFFFFFFFF, X[tx])
        Y[0, tx] = T.call_extern("int32", "__popc", same)
        Y[1, tx] = T.call_extern("int32", "__shfl_xor_sync", 0xFFFFFFFF, X[tx], 1)
        odd = T.call_extern("uint32", "__ballot_sync", 0xFFFFFFFF, X[tx] % 2 == 1)
        Y[2, tx] = T.call_extern("int32", "__popc", odd)
        Y[3, tx] = T.call_extern("int32", "__any_sync", 0xFFFFFFFF, X[tx] > 6)
        T.evaluate(T.call_extern("int32", "__syncwarp"))

    x = torch.randint(0, 8, (64,), dtype=torch.int32)
    x[:32] %= 7
    y = torch.empty(4, 64, dtype=torch.int32)
    kernel()(x, y)
    warps = x.view(2, 32)
    counts = (warps[:, :, None] == warps[:, None, :]).sum(-1).reshape(-1)
    assert torch.equal(y[0].long(), counts)
    assert torch.equal(y[1], x[torch.arange(64) ^ 1])
    assert torch.equal(y[2].view(2, 32)[:, 0].long(), (warps % 2).sum(1))
    assert y[3].view(2, 32)[:, 0].tolist() == [int((w > 6).any()) for w in warps]


def test_a_function_of_the_users_own_is_still_refused():
    with pytest.raises(Unsupported, match='call_extern of "my_popc"'):
        called("my_popc", "int32", "int32")


def test_a_number_is_a_condition_where_it_is_not_zero():
    @jit_kernel(threads=64)
    def kernel(X: T.Tensor((64,), "int64"), flag: T.int32, Y: T.Tensor((64,), "int32")):
        for i in T.Parallel(64):
            if i < 60:
                if X[i] & 6:
                    Y[i] = T.if_then_else((X[i] & 4) != 0, 2, 1)
                else:
                    Y[i] = 0
            if flag & 2:
                Y[i] = Y[i] + 10

    x = torch.arange(64)
    expected = torch.where(x & 4 != 0, 2, torch.where(x & 2 != 0, 1, 0))
    for flag, more in ((0, 0), (1, 0), (2, 10)):
        y = torch.zeros(64, dtype=torch.int32)
        kernel()(x, flag, y)
        assert torch.equal(y[:60].long(), expected[:60] + more)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_narrow_integer_shifted_to_the_left_is_cut_where_it_is_stored(dtype, alone):
    @jit_kernel(threads=32)
    def kernel(X: T.Tensor((8,), dtype), W: T.Tensor((8,), "int32"), N: T.Tensor((8,), dtype)):
        for i in T.serial(8) if alone else T.Parallel(8):
            W[i] = T.cast(X[i] << 12, "int32") | 1
            N[i] = X[i] << 6

    x = torch.tensor([0, 1, 2, 3, 5, 77, 100, 127]).to(getattr(torch, dtype))
    w, n = torch.empty(8, dtype=torch.int32), torch.empty_like(x)
    kernel()(x, w, n)
    assert w.tolist() == [int(v) << 12 | 1 for v in x]
    assert torch.equal(n.long(), (x.long() << 6).to(n.dtype).long())
