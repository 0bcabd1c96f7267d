"""Vector loads and stores, in code of a block and in code of single threads."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpreterError, Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")


def test_vectors_are_loaded_computed_and_stored():
    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((64,), "float16"), B: T.Tensor((64,), "float32")):
        two = T.Broadcast(T.float32(2), 8)
        for k in T.serial(8):
            wide = T.Cast("float32x8", A[T.Ramp(k * 8, 1, 8)])
            B[T.Ramp(k * 8, 1, 8)] = T.exp2(wide) * two
        B[T.Ramp(1, 2, 4)] = T.Broadcast(T.float32(-1), 4)

    a, b = torch.randn(64).half(), torch.empty(64)
    kernel()(a, b)
    expected = torch.exp2(a.float()) * 2
    expected[1:8:2] = -1
    torch.testing.assert_close(b, expected)


def test_every_thread_stores_a_vector_of_its_own():
    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((128,), "float16"), B: T.Tensor((128,), "float16")):
        tx = T.get_thread_binding()
        mine = T.alloc_local((4,), "float16")
        mine[T.Ramp(0, 1, 4)] = A[T.Ramp(tx * 4, 1, 4)]
        if tx > 0:
            B[T.Ramp(tx * 4, 1, 4)] = mine[T.Ramp(0, 1, 4)]

    a, b = torch.randn(128).half(), torch.zeros(128).half()
    kernel()(a, b)
    assert torch.equal(b[4:], a[4:])
    assert not b[:4].any()


def test_a_vector_store_outside_is_guarded_element_by_element():
    n = T.dynamic("n")

    @jit_kernel
    def kernel(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 8), threads=32) as bx:
            B[T.Ramp(bx * 8, 1, 8)] = A[T.Ramp(bx * 8, 1, 8)]

    a, b = torch.randn(21), torch.zeros(21)
    kernel()(a, b)
    assert torch.equal(a, b)


def test_a_vector_that_nothing_uses_is_not_loaded():
    """Compiled code has no such load, and outside of memory it would be an error."""

    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        shared = T.alloc_shared((64,), "float32")
        named = shared[T.Ramp(60, 1, 8)]  # noqa: F841
        T.copy(A, shared)
        T.copy(shared, B)

    a, b = torch.randn(64), torch.zeros(64)
    kernel()(a, b)
    assert torch.equal(a, b)


def test_a_vector_store_that_reads_its_buffer_shifted_is_refused():
    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((64,), "float32")):
        A[T.Ramp(1, 1, 8)] = A[T.Ramp(0, 1, 8)]

    with pytest.raises(
        Unsupported, match=r"a vector store to A that reads it shifted \(.*\.py:\d+"
    ):
        kernel()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_operations_of_packed_pairs(dtype):
    @jit_kernel(threads=32)
    def kernel(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((7, 64), dtype)):
        at = T.Ramp(T.get_thread_binding() * 2, 1, 2)
        C[0, at] = T.add2(A[at], B[at])
        C[1, at] = T.sub2(A[at], B[at])
        C[2, at] = T.mul2(A[at], B[at])
        C[3, at] = T.max2(A[at], B[at])
        C[4, at] = T.min2(A[at], B[at])
        C[5, at] = T.fma2(A[at], B[at], A[at])
        C[6, at] = T.abs2(A[at])

    a, b = (torch.randint(-9, 9, (64,)).to(getattr(torch, dtype)) / 4 for _ in "ab")
    a[3] = float("nan")
    got = torch.empty(7, 64, dtype=a.dtype)
    kernel()(a, b, got)
    expected = (a + b, a - b, a * b, torch.fmax(a, b), torch.fmin(a, b), a * b + a, a.abs())
    torch.testing.assert_close(got, torch.stack(expected), equal_nan=True)


@pytest.mark.parametrize("lanes", [2, 4])
def test_a_vector_atomic_returns_the_old_values(lanes):
    add = {2: T.atomic_addx2, 4: T.atomic_addx4}[lanes]

    @jit_kernel(S="f32[8]", X="f32[32 * lanes]", P="f32[32 * lanes]", threads=32)
    def kernel(S, X, P):
        for i in T.Parallel(32):
            P[i * lanes : (i + 1) * lanes] = add(S[lanes], X[i * lanes], return_prev=True)

    x, p, s = torch.randint(0, 9, (32 * lanes,)).float(), torch.empty(32 * lanes), torch.ones(8)
    kernel()(s, x, p)
    rows = x.view(32, lanes)
    assert torch.equal(s[lanes : 2 * lanes], 1 + rows.sum(0))
    assert s[:lanes].tolist() == [1] * lanes
    # Whatever the order, the old values are those of some order of the additions.
    for old, added in zip(p.view(32, lanes).T, rows.T, strict=True):
        order = torch.argsort(old + added / 100)
        assert torch.equal(old[order], 1 + torch.cumsum(added[order], 0) - added[order])


def test_every_thread_does_a_vector_atomic_that_returns():
    @jit_kernel(threads=4)
    def kernel(S: T.Tensor((2,), "float32"), X: T.Tensor((2,), "float32")):
        old = T.alloc_local((2,), "float32")
        old[0:2] = T.atomic_addx2(S[T.Ramp(0, 1, 2)], X[T.Ramp(0, 1, 2)], return_prev=True)

    s = torch.zeros(2)
    kernel()(s, torch.tensor([1.0, 2.0]))
    assert s.tolist() == [4.0, 8.0]


@pytest.mark.parametrize(("words", "dtype"), [(1, "float32"), (2, "float16"), (8, "bfloat16")])
def test_words_are_loaded_and_stored_by_address(words, dtype):
    load = {1: T.ldg32, 2: T.ldg64, 8: T.ldg256}[words]
    store = {1: T.stg32, 2: T.stg64, 8: T.stg256}[words]
    count = words * 32 // (32 if dtype == "float32" else 16)

    @jit_kernel(X="dtype[32 * count]", Y="dtype[32 * count]", Z="dtype[32 * count]")
    def kernel(X, Y, Z):
        with T.Kernel(1, threads=32):
            at = T.get_thread_binding() * count
            store(Y[at], load(X[at]), pred=at < 20 * count)
            if count == 1:
                Z[at] = T.reinterpret(load(X[at], pred=at >= 8), dtype)
            else:
                Z[at : at + count] = T.reinterpret(
                    load(X[at], pred=at >= 8 * count), f"{dtype}x{count}"
                )

    x = torch.randn(32, count).to(getattr(torch, dtype))
    y, z = torch.zeros_like(x), torch.ones_like(x)
    kernel()(x.view(-1), y.view(-1), z.view(-1))
    assert torch.equal(y[:20], x[:20])
    assert not y[20:].any()
    assert torch.equal(z[8:], x[8:])
    assert not z[:8].any()


def test_words_of_shared_memory():
    @jit_kernel(threads=16)
    def kernel(X: T.Tensor((64,), "float16"), Y: T.Tensor((64,), "float16")):
        tx = T.get_thread_binding()
        S = T.alloc_shared((64,), "float16")
        T.sts64(S[tx * 4], T.ldg64(X[tx * 4]))
        T.sync_threads()
        T.stg64(Y[60 - tx * 4], T.lds64(S[tx * 4]))

    x = torch.randn(64).half()
    y = torch.zeros_like(x)
    kernel()(x, y)
    assert torch.equal(y.view(16, 4).flip(0), x.view(16, 4))


def test_words_outside_of_memory_are_an_error():
    @jit_kernel(threads=32)
    def kernel(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        tx = T.get_thread_binding()
        T.stg64(Y[tx * 2], T.ldg64(X[tx * 2 + 2]))

    with pytest.raises(InterpreterError, match="X has 64 words of 32 bits, and word 64"):
        kernel()(torch.randn(64), torch.randn(64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("threads", [False, True])
def test_memory_of_pairs(dtype, threads):
    pair = getattr(T, f"{dtype}x2")

    @jit_kernel(threads=64)
    def kernel(A: T.Tensor((64, 4), dtype), B: T.Tensor((64, 6), dtype)):
        i = T.get_thread_binding() if threads else 3
        first = T.alloc_var(pair)
        both = T.alloc_local((2,), pair)
        first = pair(A[i, 0], A[i, 1])
        both[1] = pair(A[i, 2], A[i, 3])
        both[0] = first + both[1]
        B[i, 0] = T.extract_lane(first, 1)
        B[i, 1] = T.extract_lane(both[1], 0)
        B[i, T.Ramp(2, 1, 2)] = both[0]
        B[i, T.Ramp(4, 1, 2)] = both[0] * pair(A[i, 3], A[i, 2])

    a = torch.randint(-8, 9, (64, 4)).to(getattr(torch, dtype))
    b = torch.zeros(64, 6, dtype=a.dtype)
    kernel()(a, b)
    total = a[:, :2] + a[:, 2:]
    right = torch.cat([a[:, 1:3], total, total * a[:, [3, 2]]], 1)
    rows = slice(None) if threads else slice(3, 4)
    assert torch.equal(b[rows], right[rows])
    assert threads or not b[:3].any()
