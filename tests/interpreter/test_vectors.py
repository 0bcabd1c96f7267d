"""Vector loads and stores, in code of a block and in code of single threads."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")


def test_vectors_are_loaded_computed_and_stored():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((64,), "float16"), B: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                two = T.Broadcast(T.float32(2), 8)
                for k in T.serial(8):
                    wide = T.Cast("float32x8", A[T.Ramp(k * 8, 1, 8)])
                    B[T.Ramp(k * 8, 1, 8)] = T.exp2(wide) * two
                B[T.Ramp(1, 2, 4)] = T.Broadcast(T.float32(-1), 4)

        return main

    a, b = torch.randn(64).half(), torch.empty(64)
    kernel()(a, b)
    expected = torch.exp2(a.float()) * 2
    expected[1:8:2] = -1
    torch.testing.assert_close(b, expected)


def test_every_thread_stores_a_vector_of_its_own():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((128,), "float16"), B: T.Tensor((128,), "float16")):
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                mine = T.alloc_local((4,), "float16")
                mine[T.Ramp(0, 1, 4)] = A[T.Ramp(tx * 4, 1, 4)]
                if tx > 0:
                    B[T.Ramp(tx * 4, 1, 4)] = mine[T.Ramp(0, 1, 4)]

        return main

    a, b = torch.randn(128).half(), torch.zeros(128).half()
    kernel()(a, b)
    assert torch.equal(b[4:], a[4:])
    assert not b[:4].any()


def test_a_vector_store_outside_is_guarded_element_by_element():
    @tilelang.jit
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, 8), threads=32) as bx:
                B[T.Ramp(bx * 8, 1, 8)] = A[T.Ramp(bx * 8, 1, 8)]

        return main

    a, b = torch.randn(21), torch.zeros(21)
    kernel()(a, b)
    assert torch.equal(a, b)


def test_a_vector_store_that_reads_its_buffer_shifted_is_refused():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                A[T.Ramp(1, 1, 8)] = A[T.Ramp(0, 1, 8)]

        return main

    with pytest.raises(
        Unsupported, match=r"a vector store to A that reads it shifted \(.*\.py:\d+"
    ):
        kernel()
