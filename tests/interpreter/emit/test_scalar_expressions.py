"""Each operation of the expression language against numpy and torch, as tiles and as scalars."""

import numpy as np
import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")
N = 96


@jit_kernel(X="dtype[N, N]", Y="out_dtype[N, N]", out_idx=[-1])
def elementwise(X, Y, op, dtype, out_dtype):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
        for i, j in T.Parallel(64, 64):
            Y[bx * 64 + i, by * 64 + j] = op(X[bx * 64 + i, by * 64 + j])


@jit_kernel(X="dtype[N]", Y="out_dtype[N]", out_idx=[-1])
def scalar_kernel(X, Y, op, dtype, out_dtype):
    with T.Kernel(N, threads=32) as bx:
        Y[bx] = op(X[bx])


@jit_kernel(X="dtype[N]", Z="dtype[N]", Y="dtype[N]", out_idx=[-1])
def pair_kernel(X, Z, Y, op, dtype):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            Y[bx * 64 + i] = op(X[bx * 64 + i], Z[bx * 64 + i])


FLOAT_OPS = {
    "exp": (T.exp, torch.exp),
    "exp2": (T.exp2, torch.exp2),
    "log": (lambda a: T.log(T.abs(a)), lambda a: a.abs().log()),
    "log2": (lambda a: T.log2(T.abs(a)), lambda a: a.abs().log2()),
    "log1p": (lambda a: T.log1p(T.abs(a)), lambda a: a.abs().log1p()),
    "sqrt": (lambda a: T.sqrt(T.abs(a)), lambda a: a.abs().sqrt()),
    "rsqrt": (lambda a: T.rsqrt(T.abs(a)), lambda a: a.abs().rsqrt()),
    "tanh": (T.tanh, torch.tanh),
    "sigmoid": (T.sigmoid, torch.sigmoid),
    "erf": (T.erf, torch.erf),
    "sin": (T.sin, torch.sin),
    "cos": (T.cos, torch.cos),
    "floor": (T.floor, torch.floor),
    "ceil": (T.ceil, torch.ceil),
    "trunc": (T.trunc, torch.trunc),
    "round": (T.round, torch.round),
    "round away from zero": (
        lambda x: T.round(x, "ties-away-from-zero"),
        lambda a: torch.sign(a) * torch.floor(a.abs() + 0.5),
    ),
    "nearbyint": (T.nearbyint, torch.round),
    "abs": (T.abs, torch.abs),
    "pow": (lambda a: T.pow(T.abs(a), 1.5), lambda a: a.abs() ** 1.5),
    "max": (lambda a: T.max(a, 0.25), lambda a: a.clamp(min=0.25)),
    "min": (lambda a: T.min(a, 0.25), lambda a: a.clamp(max=0.25)),
    "clamp": (lambda a: T.clamp(a, -0.5, 0.5), lambda a: a.clamp(-0.5, 0.5)),
    "if_then_else": (
        lambda a: T.if_then_else(a > 0, a * 2, -a),
        lambda a: torch.where(a > 0, a * 2, -a),
    ),
    "select": (lambda a: T.Select(a > 0, a * 2, a - 1), lambda a: torch.where(a > 0, a * 2, a - 1)),
    "several reads": (lambda a: (a + 1.0) * (a + 3.0) / (a * a + 1.0), None),
}
TOLERANCE = {"float64": 1e-13, "float32": 3e-6, "float16": 3e-3, "bfloat16": 2.5e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", list(FLOAT_OPS))
def test_a_float_operation_agrees_with_torch(name, dtype):
    op, reference = FLOAT_OPS[name]
    reference = reference or op
    x = torch.randn(N, N, dtype=torch.float64).to(getattr(torch, dtype))
    expected = reference(x.double())
    for got, want in (
        (elementwise(op, dtype, dtype)(x), expected),
        (scalar_kernel(op, dtype, dtype)(x[0].contiguous()), expected[0]),
    ):
        assert got.dtype == x.dtype
        error = ((got.double() - want).abs() / (want.abs() + 0.05)).max()
        assert error <= TOLERANCE[dtype]


INT_OPS = {
    "floordiv": (T.floordiv, np.floor_divide),
    "floormod": (T.floormod, np.mod),
    "truncdiv": (T.truncdiv, lambda a, b: np.trunc(a / b).astype(np.int32)),
    "truncmod": (T.truncmod, np.fmod),
    "shift right": (lambda a, b: a >> (b % 8), lambda a, b: a >> (b % 8)),
    "shift left": (lambda a, b: a << (b % 31), lambda a, b: a << (b % 31)),
    "and": (lambda a, b: a & b, np.bitwise_and),
    "or": (lambda a, b: a | b, np.bitwise_or),
    "xor": (lambda a, b: a ^ b, np.bitwise_xor),
    "not": (lambda a, _: ~a, lambda a, _: ~a),
    "product that wraps": (
        lambda a, b: a * b * 1000003 * a,
        lambda a, b: a * b * np.int32(1000003) * a,
    ),
    "max": (T.max, np.maximum),
    "min": (T.min, np.minimum),
    "abs": (lambda a, _: T.abs(a), lambda a, _: abs(a)),
    "clamp": (lambda a, _: T.clamp(a, -100, 100), lambda a, _: np.clip(a, -100, 100)),
    "choice": (
        lambda a, b: T.if_then_else(T.And(a > b, b < 30), a, b * 2),
        lambda a, b: np.where((a > b) & (b < 30), a, b * 2),
    ),
    "logic": (
        lambda a, b: T.Cast("int32", T.Or(T.Not(a > b), a == 3)),
        lambda a, b: (~(a > b) | (a == 3)).astype(np.int32),
    ),
}


@pytest.mark.parametrize("name", list(INT_OPS))
def test_an_integer_operation_agrees_with_numpy(name):
    op, reference = INT_OPS[name]
    x = torch.randint(-1000, 1000, (N,), dtype=torch.int32)
    z = torch.randint(1, 60, (N,), dtype=torch.int32)
    with np.errstate(all="ignore"):
        expected = reference(x.numpy(), z.numpy())
        expected_seven = reference(x.numpy(), np.full(N, 7, np.int32))
    np.testing.assert_array_equal(pair_kernel(op, "int32")(x, z).numpy(), expected)
    got = scalar_kernel(lambda a: op(a, 7), "int32", "int32")(x)
    np.testing.assert_array_equal(got.numpy(), expected_seven)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float16", "bfloat16"),
        ("float64", "float32"),
        ("float32", "float8_e4m3fn"),
        ("float32", "float8_e5m2"),
        ("float8_e4m3fn", "float32"),
        ("float32", "int32"),
        ("int32", "float32"),
        ("int32", "float16"),
        ("int32", "int8"),
        ("int32", "uint8"),
        ("int8", "int32"),
        ("uint8", "int32"),
        ("int32", "int64"),
        ("bool", "float32"),
        ("float32", "bool"),
        ("int32", "bool"),
    ],
)
def test_a_cast_agrees_with_torch(source, target):
    values = torch.randn(N) * 50
    if source == "uint8":
        values = values.abs()
    x = (values > 0) if source == "bool" else values.to(getattr(torch, source))
    expected = x.to(getattr(torch, target)).float()
    got = scalar_kernel(lambda a: T.Cast(target, a), source, target)(x)
    torch.testing.assert_close(got.float(), expected, rtol=0, atol=0)
    tile = torch.stack([x.float()] * N).to(x.dtype)
    got = elementwise(lambda a: T.Cast(target, a), source, target)(tile)
    torch.testing.assert_close(got.float()[5], expected, rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "limit"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_float8_saturates_as_cuda_does(dtype, limit):
    values = [1e6, -1e6, float("inf"), -float("inf"), limit, float("nan")]
    expected = torch.tensor([limit, -limit, limit, -limit, limit, float("nan")])
    x = torch.zeros(N)
    x[: len(values)] = torch.tensor(values)
    got = scalar_kernel(lambda a: T.Cast(dtype, a), "float32", dtype)(x)
    torch.testing.assert_close(got.float()[: len(values)], expected, equal_nan=True)
    got = elementwise(lambda a: T.Cast(dtype, a), "float32", dtype)(torch.stack([x] * N))
    torch.testing.assert_close(got.float()[3, : len(values)], expected, equal_nan=True)


def test_float_to_integer_saturates_as_cuda_does():
    x = torch.zeros(N, N)
    x[0, :4] = torch.tensor([1e20, -1e20, float("nan"), -3.9])
    got = elementwise(lambda a: T.Cast("int32", a), "float32", "int32")(x)
    assert got[0, :4].tolist() == [2**31 - 1, -(2**31), 0, -3]


def test_float32_stays_float32_where_float64_would_differ():
    x = torch.full((N,), 16777216.0)
    got = scalar_kernel(lambda a: (a + 1.0) - a, "float32", "float32")(x)
    assert got[0] == 0.0
    got = elementwise(lambda a: (a + 1.0) - a, "float32", "float32")(torch.full((N, N), 16777216.0))
    assert got.abs().max() == 0.0


def test_half_arithmetic_is_rounded_before_it_is_widened():
    x = torch.full((N, N), 1.0 + 2**-10).half()
    got = elementwise(lambda a: T.Cast("float32", a * a), "float16", "float32")(x)
    assert got[0, 0] == (x[0, 0] * x[0, 0]).float()


def test_maximum_ignores_nan_beside_a_number():
    x = torch.full((N, N), float("nan"))
    assert elementwise(lambda a: T.max(a, 0.5), "float32", "float32")(x).eq(0.5).all()


def test_isnan_isinf_and_infinity():
    def classify(a):
        unusual = T.if_then_else(T.isinf(a), 2.0, -T.infinity("float32"))
        return T.if_then_else(T.isnan(a), 1.0, unusual)

    x = torch.zeros(N, N)
    x[0, :3] = torch.tensor([float("nan"), float("inf"), 1.0])
    got = elementwise(classify, "float32", "float32")(x)
    assert got[0, :3].tolist() == [1.0, 2.0, float("-inf")]


def test_reinterpret_keeps_bits():
    x = torch.randn(N)
    got = scalar_kernel(lambda a: T.reinterpret(a, "int32"), "float32", "int32")(x)
    assert torch.equal(got, x.view(torch.int32))


def test_reinterpret_of_a_narrow_integer_takes_its_own_bits():
    x = torch.arange(N * N).reshape(N, N).to(torch.uint8)

    def shifted(a):
        return T.reinterpret(a << T.uint8(4), "int8")

    assert torch.equal(elementwise(shifted, "uint8", "int8")(x), (x << 4).view(torch.int8))
    row = x[0].contiguous()
    assert torch.equal(scalar_kernel(shifted, "uint8", "int8")(row), (row << 4).view(torch.int8))


def test_scalar_integers_wrap_where_it_shows():
    @jit_kernel(out_idx=[-1], threads=32)
    def scalars(X: T.Tensor((1,), "int32"), Y: T.Tensor((8,), "int64")):
        a = X[0]
        Y[0] = T.Cast("int64", a + a)
        Y[1] = T.if_then_else(a + a < 0, 1, 0)
        Y[2] = T.Cast("int64", (a + a) // 7)
        Y[3] = T.Cast("int64", T.max(a + a, 5))
        Y[4] = T.Cast("int64", (a + a) >> 1)
        Y[5] = T.Cast("int64", T.Cast("float32", a + 1))
        Y[6] = T.Cast("int64", T.Cast("int8", a - 1))
        Y[7] = T.Cast("int64", a) + T.Cast("int64", a)

    a = 2**31 - 1
    got = scalars()(torch.tensor([a], dtype=torch.int32)).tolist()
    assert got == [-2, 1, -1, 5, -1, -(2**31), -2, 2 * a]


def test_constants_are_rounded_to_their_dtype():
    x = torch.ones(N, N).half()
    got = elementwise(lambda a: T.Cast("float32", a * T.float16(0.1)), "float16", "float32")(x)
    assert got[0, 0] == torch.tensor(0.1).half().float()
    got = scalar_kernel(lambda a: a + T.Cast("int8", 300), "int8", "int8")(torch.zeros(N).char())
    assert got[0] == 44


@pytest.mark.parametrize(
    ("dtype", "raw"), [("float16", "uint16"), ("bfloat16", "int16"), ("float8_e4m3fn", "uint8")]
)
def test_reinterpret_of_low_precision(dtype, raw):
    x = torch.randn(N, N).to(getattr(torch, dtype))
    raw_x = x.view(getattr(torch, raw))
    got = elementwise(lambda a: T.reinterpret(a, raw), dtype, raw)(x)
    assert torch.equal(got, raw_x)
    back = elementwise(lambda a: T.reinterpret(a, dtype), raw, dtype)(raw_x)
    assert torch.equal(back.view(getattr(torch, raw)), raw_x)
    got = scalar_kernel(lambda a: T.reinterpret(a, raw), dtype, raw)(x[0].contiguous())
    assert torch.equal(got, raw_x[0])
