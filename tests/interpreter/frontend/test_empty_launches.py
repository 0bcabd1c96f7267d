"""Launches without blocks, which TileLang's host code refuses on every GPU."""

import re

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import LaunchError, interpret

TOKENS = 32


@tilelang.jit
def doubled(dim=16):
    tokens = T.dynamic("num_tokens")

    @T.prim_func
    def doubling(X: T.Tensor((tokens, dim), "float32"), Y: T.Tensor((tokens, dim), "float32")):
        with T.Kernel(3, T.ceildiv(tokens, TOKENS), threads=128) as (column, row):
            for i, j in T.Parallel(TOKENS, dim):
                if j % 3 == column:
                    Y[row * TOKENS + i, j] = 2 * X[row * TOKENS + i, j]

    return doubling


def run(kernel, rows):
    x = torch.randn(rows, 16)
    y = torch.empty_like(x)
    kernel(x, y)
    assert torch.equal(y, 2 * x)


@pytest.mark.parametrize(
    "options",
    [{}, {"sanitize": True}, {"coverage": True}, {"trace": True}, {"arch": "sm_80"}],
    ids=lambda options: " ".join(options) or "plain",
)
def test_a_launch_without_blocks_names_the_kernel_and_its_grid(options):
    with interpret(**options) as session:
        kernel = doubled()
        run(kernel, 40)
        with pytest.raises(LaunchError) as caught:
            run(kernel, 0)
        run(kernel, 1)
    told = str(caught.value)
    assert "kernel doubling cannot be launched: grid dimension must be positive" in told
    assert "grid=(3,0,1); where an input is empty, return before the call" in told
    assert re.search(r"\n  at \S+test_empty_launches.py:\d+, in kernel doubling", told)
    assert not session.reports


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_each_dimension_of_a_grid_is_looked_at(shape):
    @jit_kernel(X="i32[a, b, c]", Y="i32[a, b, c]", out_idx=[-1])
    def grid(X, Y):
        a, b, c = X.shape
        with T.Kernel(c, b, a, threads=32) as (bx, by, bz):
            Y[bz, by, bx] = X[bz, by, bx]

    a, b, c = shape
    with interpret(), pytest.raises(LaunchError, match=rf"grid=\({c},{b},{a}\)"):
        grid()(torch.zeros(shape, dtype=torch.int32))


def test_a_constant_grid_without_blocks_is_refused_and_others_are_not():
    @tilelang.jit(out_idx=[-1])
    def constant(blocks):
        tokens = T.dynamic("num_tokens")

        @T.prim_func
        def main(X: T.Tensor((tokens,), "int32"), Y: T.Tensor((tokens,), "int32")):
            with T.Kernel(blocks, threads=32):
                for i in T.serial(tokens):
                    Y[i] = X[i]

        return main

    nothing = torch.zeros(0, dtype=torch.int32)
    with interpret():
        assert constant(2)(nothing).shape == (0,)
        with pytest.raises(LaunchError, match=r"grid=\(0,1,1\)"):
            constant(0)(nothing)


def test_of_several_launches_the_one_without_blocks_is_refused():
    @jit_kernel(X="i32[n]", Y="i32[m]")
    def two(X, Y):
        n, m = X.shape[0], Y.shape[0]
        with T.Kernel(n, threads=32) as bx:
            X[bx] = 1
        with T.Kernel(m, threads=32) as bx:
            Y[bx] = 2

    x = torch.zeros(3, dtype=torch.int32)
    with interpret(), pytest.raises(LaunchError, match=r"grid=\(0,1,1\)"):
        two()(x, torch.zeros(0, dtype=torch.int32))
    assert x.tolist() == [1, 1, 1]


tokens = T.dynamic("num_tokens")


@jit_kernel
def handed(X: T.Tensor((tokens, 16), "float32"), Y: T.Tensor((tokens, 16), "float32")):
    with T.Kernel(T.ceildiv(tokens, TOKENS), threads=256) as block:
        tile = T.alloc_shared((TOKENS, 16), "float32")
        full = T.alloc_barrier([128])
        if T.get_thread_binding() >= 128:
            for i, j in T.Parallel(TOKENS, 16):
                tile[i, j] = 2 * X[block * TOKENS + i, j]
            T.mbarrier_arrive(full[0])
        else:
            T.mbarrier_wait_parity(full[0], 0)
            for i, j in T.Parallel(TOKENS, 16):
                Y[block * TOKENS + i, j] = tile[i, j]


@pytest.mark.parametrize("sanitize", [False, True])
def test_kernels_whose_threads_play_roles(sanitize):
    with interpret(sanitize=sanitize):
        run(handed(), 40)
        with pytest.raises(LaunchError, match=r"handed .*grid=\(0,1,1\)"):
            run(handed(), 0)


@jit_kernel(X="f32[cells]", name="counting")
def counted(X, axis):
    cells = X.shape[0]
    with T.Kernel(*(cells if n == axis else 1 for n in range(3)), threads=32) as block:
        X[block[axis]] = 1.0


@pytest.mark.parametrize("axis", [1, 2])
def test_a_grid_of_more_than_65535_blocks_along_y_or_z(axis):
    with interpret():
        kernel = counted(axis)
        few = torch.zeros(5)
        kernel(few)
        assert few.sum() == 5
        words = rf"kernel counting: grid=.* has 65536 blocks along {'xyz'[axis]}, .* at most 65535"
        with pytest.raises(LaunchError, match=words):
            kernel(torch.zeros(65_536))
