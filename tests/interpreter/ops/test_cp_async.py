"""`T.ptx_cp_async` in a parallel loop."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

WIDTH = 8


@tilelang.jit
def padded(rows, columns, padded_columns, by_number):
    """Rows with zeros behind them, each copied in pieces of `WIDTH`."""

    @T.macro
    def copy(X, s, bx):
        for i, j in T.Parallel(8, padded_columns // WIDTH):
            if by_number:
                T.ptx_cp_async(
                    T.tvm_access_ptr(
                        T.type_annotation("float16"),
                        s.data,
                        i * padded_columns + j * WIDTH,
                        WIDTH,
                        2,
                    ),
                    T.tvm_access_ptr(
                        T.type_annotation("float16"),
                        X.data,
                        (bx * 8 + i) * columns + j * WIDTH,
                        WIDTH,
                        1,
                    ),
                    WIDTH,
                    predicate=T.And(bx * 8 + i < rows, j * WIDTH + WIDTH <= columns),
                )
            else:
                T.ptx_cp_async(
                    T.access_ptr(s[i, j * WIDTH], "w", WIDTH),
                    T.access_ptr(X[bx * 8 + i, j * WIDTH], "r", WIDTH),
                    WIDTH,
                    predicate=T.And(bx * 8 + i < rows, j * WIDTH + WIDTH <= columns),
                )
        T.ptx_commit_group()

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, padded_columns), "float16")
    ):
        with T.Kernel(T.ceildiv(rows, 8), threads=128) as bx:
            s = T.alloc_shared((8, padded_columns), "float16")
            copy(X, s, bx)
            T.ptx_wait_group(0)
            T.sync_threads()
            for i, j in T.Parallel(8, padded_columns):
                if bx * 8 + i < rows:
                    Y[bx * 8 + i, j] = s[i, j]

    return main


@pytest.mark.parametrize("by_number", [False, True])
def test_iterations_of_a_parallel_loop_copy(by_number):
    x, y = torch.randn(19, 40).half(), torch.empty(19, 64).half()
    with interpret(sanitize=True) as run:
        padded(19, 40, 64, by_number)(x, y)
    assert torch.equal(y, torch.nn.functional.pad(x, (0, 24)))
    assert not run.reports


def test_a_parallel_loop_does_not_wait_for_its_copies():
    @jit_kernel(threads=32)
    def kernel(X: T.Tensor((4, 32), "float16"), Y: T.Tensor((4, 32), "float16")):
        s = T.alloc_shared((4, 32), "float16")
        for i, j in T.Parallel(4, 4):
            T.ptx_cp_async(T.access_ptr(s[i, j * 8], "w", 8), T.access_ptr(X[i, j * 8], "r", 8), 8)
        T.ptx_commit_group()
        T.copy(s, Y)

    x, y = torch.randn(4, 32).half(), torch.empty(4, 32).half()
    with interpret(sanitize=True) as run:
        kernel()(x, y)
    assert any("s" in report.message for report in run.reports)
