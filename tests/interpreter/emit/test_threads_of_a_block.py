"""Statements outside of T.Parallel are executed by every thread of a block, as on a GPU."""

import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(A="f32[1]", B="f32[1]")
def atomic_of_a_block(A, B, threads=32):
    with T.Kernel(2, threads=threads):
        T.atomic_add(B[0], A[0])


def test_every_thread_of_a_block_does_an_atomic_add():
    total = torch.zeros(1)
    with interpret():
        atomic_of_a_block()(torch.full((1,), 2.0), total)
    assert total.item() == 2 * 32 * 2.0


def test_a_block_of_one_thread_adds_once():
    total = torch.zeros(1)
    with interpret():
        atomic_of_a_block(threads=1)(torch.full((1,), 2.0), total)
    assert total.item() == 2 * 2.0


@jit_kernel(threads=64)
def atomic_of_elected_threads(B: T.Tensor((1,), "int32")):
    if T.get_thread_binding() < 3:
        T.atomic_add(B[0], 1)


def test_threads_that_do_not_take_a_branch_do_not_add():
    count = torch.zeros(1, dtype=torch.int32)
    with interpret():
        atomic_of_elected_threads()(count)
    assert count.item() == 3


@jit_kernel(threads=32)
def sum_from_no_start(B: T.Tensor((1,), "int32")):
    total = T.alloc_var("int32")
    for i in T.serial(10):
        total += i
    B[0] = total


def test_a_variable_without_a_start_is_zero():
    found = torch.zeros(1, dtype=torch.int32)
    with interpret():
        sum_from_no_start()(found)
    assert found.item() == 45  # TileLang's CUDA is `int total = 0;`


@jit_kernel(threads=32)
def reducer_of_one_element(A: T.Tensor((8,), "float32"), B: T.Tensor((1,), "float32")):
    total = T.alloc_reducer((1,), "float32", op="sum")
    T.reducer_init(total)
    for i in T.Parallel(8):
        T.reducer_update(total[0], A[i])
    T.finalize_reducer(total)
    T.copy(total, B)


def test_a_reducer_of_one_element_is_initialized():
    found = torch.zeros(1)
    with interpret():
        reducer_of_one_element()(torch.arange(8.0), found)
    assert found.item() == 28.0


@jit_kernel(threads=32)
def vector_around_the_end(A: T.Tensor((1024,), "float32"), B: T.Tensor((4, 4), "float32")):
    for t in T.serial(4):
        B[t, T.Ramp(0, 1, 4)] = A[T.Ramp(t - 2, 1, 4)]


def test_negative_elements_of_a_vector_index_count_from_the_end():
    found = torch.zeros(4, 4)
    with interpret():
        vector_around_the_end()(torch.arange(1024.0), found)
    expected = (torch.arange(4)[:, None] - 2 + torch.arange(4)) % 1024
    assert torch.equal(found, expected.float())


def test_a_copy_to_memory_of_a_thread_takes_the_extent_that_is_a_number():
    @jit_kernel
    def kernel(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((4, 32), "float32")):
        with T.Kernel(4, threads=8) as bx:
            tx = T.get_thread_binding()
            mine = T.alloc_local((4,), "float32")
            T.copy(X[bx, tx * 4 : (tx + 1) * 4], mine)
            for k in T.serial(4):
                mine[k] = mine[k] + tx
            T.copy(mine, Y[bx, tx * 4 : (tx + 1) * 4])

    x, y = torch.randn(4, 32), torch.empty(4, 32)
    with interpret():
        kernel()(x, y)
    assert torch.equal(y, x + torch.arange(32) // 4)
