"""Elementary functions of tiles."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

EXPONENT = float(torch.tensor(0.3))

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize(
    ("function", "exact", "low", "high"),
    [
        (T.exp, torch.exp, -20, 20),
        (T.sin, torch.sin, -20, 20),
        (T.cos, torch.cos, -20, 20),
        (lambda x: T.pow(T.float32(10000), x), lambda x: torch.pow(10000, x), 0, 1),
        (lambda x: T.pow(x, T.float32(0.3)), lambda x: torch.pow(x, EXPONENT), 0.1, 9),
    ],
)
def test_functions_are_nearly_always_correctly_rounded(function, exact, low, high):
    @jit_kernel(threads=128)
    def kernel(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4096,), "float32")):
        for i in T.Parallel(4096):
            Y[i] = function(X[i])

    x, y = torch.linspace(low, high, 4096), torch.empty(4096)
    kernel()(x, y)
    wanted = exact(x.double()).float()
    assert (y == wanted).float().mean() > 0.9
    torch.testing.assert_close(y, wanted, rtol=2**-22, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_zero_is_larger_than_a_negative_zero(dtype):
    @jit_kernel(A="dtype[6]", B="dtype[6]", Y="dtype[4, 6]", threads=32)
    def kernel(A, B, Y):
        for i in T.Parallel(6):
            Y[0, i] = T.max(A[i], B[i])
            Y[1, i] = T.min(A[i], B[i])
            Y[2, i] = T.max(A[i], T.cast(0, dtype))
            Y[3, i] = T.min(T.cast(0, dtype), A[i])

    nan, torch_dtype = float("nan"), getattr(torch, dtype)
    a = torch.tensor([0.0, -0.0, 0.0, -0.0, nan, 1.0], dtype=torch_dtype)
    b = torch.tensor([-0.0, 0.0, 0.0, -0.0, -0.0, nan], dtype=torch_dtype)
    y = torch.empty(4, 6, dtype=torch_dtype)
    kernel()(a, b, y)
    # PTX ignores a NaN beside a number.
    wanted = [
        [0.0, 0.0, 0.0, -0.0, -0.0, 1.0],
        [-0.0, -0.0, 0.0, -0.0, -0.0, 1.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        [0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
    ]
    assert torch.equal(y, torch.tensor(wanted, dtype=torch_dtype))
    assert torch.equal(y.signbit(), torch.tensor(wanted).signbit())


FUNCTIONS = [
    *(T.exp, T.exp2, T.exp10, T.log, T.log2, T.log10, T.log1p, T.sqrt, T.rsqrt, T.tanh, T.sigmoid),
    *(T.erf, T.sin, T.cos, T.tan, T.sinh, T.cosh, T.asin, T.acos, T.atan, T.asinh, T.atanh),
    lambda x: T.acosh(x + 1),
    lambda x: T.pow(x, x + 0.3),
    lambda x: T.pow(x, T.cast(0.3, x.dtype)),
    lambda x: T.pow(T.cast(10000, x.dtype), x),
    lambda x: T.atan2(x, x + 1),
    lambda x: T.hypot(x, x + 1),
    lambda x: T.fmod(x + 1, x),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_value_is_the_same_in_arrays_of_all_sizes(dtype):
    def kernel(size):
        @T.prim_func
        def main(
            X: T.Tensor((size,), dtype),
            Y: T.Tensor((len(FUNCTIONS), size), dtype),
            Z: T.Tensor((len(FUNCTIONS), size), dtype),
        ):
            with T.Kernel(1, threads=32):
                x = T.alloc_fragment((size,), dtype)
                y = T.alloc_fragment((size,), dtype)
                T.copy(X, x)
                for k, function in enumerate(FUNCTIONS):
                    for i in T.Parallel(size):
                        y[i] = function(x[i])
                    T.copy(y, Y[k, :])
                    for i in T.serial(T.min(size, 9)):
                        Z[k, i] = function(X[i])

        return main

    numbers = torch.rand(40000, dtype=getattr(torch, dtype)) * 0.9 + 0.05
    shape = len(FUNCTIONS), len(numbers)
    wanted, alone = torch.empty(shape, dtype=numbers.dtype), torch.empty(shape, dtype=numbers.dtype)
    tilelang.compile(kernel(len(numbers)))(numbers, wanted, alone)
    assert wanted.isfinite().all()
    assert torch.equal(alone[:, :9], wanted[:, :9])
    for size in (1, 8, 100, 600, 5000):
        start = 3 * size
        got, alone = wanted[:, :size].clone(), wanted[:, :size].clone()
        tilelang.compile(kernel(size))(numbers[start : start + size].clone(), got, alone)
        expected = wanted[:, start : start + size]
        differ = (got != expected).any(1).nonzero().flatten().tolist()
        assert not differ, (size, differ)
        assert torch.equal(alone[:, :9], expected[:, :9])
